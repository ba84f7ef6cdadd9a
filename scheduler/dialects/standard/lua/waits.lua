-- Count waiting jobs, and identify the first of each level.
-- KEYS[1] zset: waiting, entries by level and start time
-- KEYS[2] zset: blocked, entries that a worker could not take, by reason
-- KEYS[3] hash: blocked:counts, reason -> number of entries
-- Returns the number of waiting and blocked jobs, without those of paused tenants, then for each level the SHA-1 of its
-- first waiting entry or empty
local SPAN = 2 ^ 50
local found = {redis.call('ZCARD', KEYS[1]) + redis.call('ZCARD', KEYS[2])}
local counts = redis.call('HGETALL', KEYS[3])
for i = 1, #counts, 2 do
  if string.sub(counts[i], 1, 7) == 'tenant:' then found[1] = found[1] - counts[i + 1] end
end
for level = 0, 4 do
  local high = string.format('(%.0f', (level + 1) * SPAN)
  local first = redis.call('ZRANGEBYSCORE', KEYS[1], level * SPAN, high, 'LIMIT', 0, 1)[1]
  found[level + 2] = first and redis.sha1hex(first) or ''
end
return found
