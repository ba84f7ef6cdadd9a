-- Forget ends that are in the ledger, and that their jobs ended.
-- KEYS[1] stream: outcomes
-- KEYS[2] hash: finished, id -> feed:attempt of an end that is not settled
-- ARGV[1] consumer group
-- ARGV[2] number of entries
-- ARGV[3..] ids of the entries, then id and feed:attempt of each job that has ended
-- Returns how many entries were there
local outcomes, finished = KEYS[1], KEYS[2]
local last = 2 + tonumber(ARGV[2])
local CHUNK = 500
for first = last + 1, #ARGV, 2 * CHUNK do
  local ids, over = {}, {}
  for i = first, math.min(first + 2 * CHUNK, #ARGV) - 1, 2 do ids[#ids + 1] = ARGV[i] end
  for i, token in ipairs(redis.call('HMGET', finished, unpack(ids))) do
    if token == ARGV[first + 2 * i - 1] then over[#over + 1] = ids[i] end
  end
  if #over > 0 then redis.call('HDEL', finished, unpack(over)) end
end
redis.call('XACK', outcomes, ARGV[1], unpack(ARGV, 3, last))
return redis.call('XDEL', outcomes, unpack(ARGV, 3, last))
