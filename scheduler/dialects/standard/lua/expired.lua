-- List workers whose registration has expired.
-- KEYS[1] zset: workers by the time in ms at which their registration expires
-- ARGV[1] maximum of names
-- Returns their names
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. now, 'LIMIT', 0, ARGV[1])
