-- Name workers that are silent: ours of the queue, and others that were not heard for 30 s.
-- KEYS[1] zset: scheduled; the names of all other keys begin as this does
-- ARGV[1] names: seed or upstream
-- ARGV[2] queue
-- ARGV[3] most names of each
-- Returns their names
-- include: names
local ring, time = ring_of(ARGV[2]), redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local names = redis.call('ZRANGEBYSCORE', ring .. 'workers', '-inf', '(' .. now, 'LIMIT', 0, ARGV[3])
for _, name in ipairs(redis.call('ZRANGEBYSCORE', workers, '-inf', time[1] - 30, 'LIMIT', 0, ARGV[3])) do
  if not redis.call('ZSCORE', ring .. 'workers', name) then names[#names + 1] = name end
end
for _, uuid in ipairs(redis.call('SRANDMEMBER', active, 10)) do -- some that were left behind
  if redis.call('EXISTS', bodies .. uuid) == 0 then redis.call('SREM', active, uuid) end
end
return names
