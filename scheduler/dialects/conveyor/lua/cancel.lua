-- Take jobs out that no worker has; ask for the end of those that one has.
-- KEYS[1] zset: scheduled; the names of all other keys begin as this does
-- ARGV[1] names: seed or upstream
-- ARGV[2] queue
-- ARGV[3..] uuids
-- Returns for each d (removed; its entry is dropped when it is met), r (running, or ended), x (a worker of others has
-- it, and cannot be told) or u (unknown)
-- include: names
-- include: holding
local ring, answer = ring_of(ARGV[2]), {}
for i = 3, #ARGV do
  local uuid, found = ARGV[i], 'u'
  if redis.call('HEXISTS', ring .. 'finished', uuid) == 1 then
    found = 'r'
  elseif redis.call('HEXISTS', ring .. 'attempts', uuid) == 1 then
    redis.call('HSET', ring .. 'cancels', uuid, '1')
    found = 'r'
  elseif redis.call('SISMEMBER', active, uuid) == 1 and is_held(uuid) then
    found = 'x'
  elseif redis.call('HDEL', ring .. 'jobs', uuid) == 1 then
    for _, name in ipairs({'cancels', 'notes'}) do redis.call('HDEL', ring .. name, uuid) end
    for _, name in ipairs({'retries', 'unhandled'}) do redis.call('ZREM', ring .. name, uuid) end
    found = 'd'
  end
  answer[#answer + 1] = found
end
return table.concat(answer)
