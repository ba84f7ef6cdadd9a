-- Count the jobs of a queue.
-- KEYS[1] zset: waiting, entries by level and start time
-- KEYS[2] zset: blocked, entries that a worker could not take, by reason
-- KEYS[3] hash: blocked:counts, reason -> number of entries
-- KEYS[4] zset: retrying, entries by due time in ms
-- KEYS[5] hash: leases, id -> lease
-- KEYS[6] hash: finished, id -> mark of a result that is not settled
-- KEYS[7] list: dead letters
-- Returns the numbers of waiting and blocked jobs of the five levels, and of retrying, leased, finished and dead ones,
-- and of jobs that are blocked because their tenant is paused, which the levels do not include
local SPAN, found = 2 ^ 50, {}
local reasons, paused, all = {}, 0, redis.call('HGETALL', KEYS[3])
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 7) == 'tenant:' then paused = paused + all[i + 1] else reasons[#reasons + 1] = all[i] end
end
for level = 0, 4 do
  local low, high = string.format('%016.0f', level * SPAN), string.format('%016.0f', (level + 1) * SPAN)
  found[level + 1] = redis.call('ZCOUNT', KEYS[1], low, '(' .. high)
  for _, reason in ipairs(reasons) do
    local number = redis.call('ZLEXCOUNT', KEYS[2], '[' .. reason .. '\0' .. low, '(' .. reason .. '\0' .. high)
    found[level + 1] = found[level + 1] + number
  end
end
found[6] = redis.call('ZCARD', KEYS[4])
found[7] = redis.call('HLEN', KEYS[5])
found[8] = redis.call('HLEN', KEYS[6])
found[9] = redis.call('LLEN', KEYS[7])
found[10] = paused
return found
