-- Name workers that are silent.
-- KEYS[1] zset: workers by when they are silent, in ms
-- ARGV[1] most names
-- Returns their names
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. now, 'LIMIT', 0, ARGV[1])
