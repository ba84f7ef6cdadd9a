-- Enqueue dead letters again, each if it is still one and its job is not known.
-- KEYS[1] hash: jobs, id -> record
-- KEYS[2] zset: waiting, entries by level and start time
-- KEYS[3] zset: turns, virtual times of levels and next starts of tenants
-- KEYS[4] list: dead letters
-- KEYS[5] hash: reasons, SHA-1 of a dead letter -> why it is one
-- KEYS[6] list: marker, wakes a waiting worker
-- ARGV[1..] 5 values for each: dead letter, id, level:tenant, entry, record
-- Returns 1 or 0 for each
local jobs, waiting, turns, dead, reasons, marker = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

-- include: enqueue

local answer, names, entries = {}, {}, {}
for i = 1, #ARGV, 5 do
  local known = redis.call('HEXISTS', jobs, ARGV[i + 1]) == 1
  local there = not known and redis.call('LREM', dead, -1, ARGV[i]) == 1
  answer[#answer + 1] = there and '1' or '0'
  if there then
    redis.call('HDEL', reasons, redis.sha1hex(ARGV[i]))
    redis.call('HSET', jobs, ARGV[i + 1], ARGV[i + 4])
    names[#names + 1] = ARGV[i + 2]
    entries[#entries + 1] = ARGV[i + 3]
  end
end
enqueue(names, entries)
if #names > 0 and redis.call('EXISTS', marker) == 0 then redis.call('LPUSH', marker, '1') end
return table.concat(answer)
