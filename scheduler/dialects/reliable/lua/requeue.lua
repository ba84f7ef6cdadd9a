-- Take dead letters out, each if it is still there, and put them back into their lists.
-- KEYS[1] list: level critical
-- KEYS[2] list: level high
-- KEYS[3] list: level normal
-- KEYS[4] list: level low
-- KEYS[5] list: level bulk
-- KEYS[6] list: dead letters
-- KEYS[7] hash: reasons, hash of an entry -> why it is a dead letter
-- KEYS[8] list: marker, for those who wait
-- ARGV[1..] 3 values for each: entry, number of its level, entry to go on with
-- Returns 1 or 0 for each
local dead, reasons, marker = KEYS[6], KEYS[7], KEYS[8]
local answer = {}
for i = 1, #ARGV, 3 do
  local there = redis.call('LREM', dead, -1, ARGV[i]) == 1
  answer[#answer + 1] = there and '1' or '0'
  if there then
    redis.call('HDEL', reasons, redis.sha1hex(ARGV[i]))
    redis.call('LPUSH', KEYS[tonumber(ARGV[i + 1])], ARGV[i + 2])
  end
end
if redis.call('EXISTS', marker) == 0 then redis.call('LPUSH', marker, '1') end
return table.concat(answer)
