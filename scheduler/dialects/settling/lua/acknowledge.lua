-- Forget ends that are in the ledger; that their jobs ended, a while later: a push of them may still be on its way.
-- KEYS[1] stream: outcomes
-- KEYS[2] hash: finished, id -> feed:attempt:stream entry of an end that is not settled
-- KEYS[3] hash: settled, id -> feed of what ended and was settled lately
-- KEYS[4] hash: the same of a while before
-- ARGV[1] consumer group
-- ARGV[2] number of entries
-- ARGV[3] how long at least it is known that a job was settled, in ms
-- ARGV[4..] ids of the entries, then id and feed:attempt of each job that has ended
-- Returns how many entries were there
local outcomes, finished = KEYS[1], KEYS[2]
local last = 3 + tonumber(ARGV[2])
local CHUNK = 500

-- include: settling/remember

for first = last + 1, #ARGV, 2 * CHUNK do
  local ids, over, feeds = {}, {}, {}
  for i = first, math.min(first + 2 * CHUNK, #ARGV) - 1, 2 do ids[#ids + 1] = ARGV[i] end
  for i, mark in ipairs(redis.call('HMGET', finished, unpack(ids))) do
    local token = ARGV[first + 2 * i - 1]
    -- A mark of an earlier version names no stream entry.
    if mark and (string.sub(mark, 1, #token + 1) == token .. ':' or mark == token) then
      over[#over + 1] = ids[i]
      feeds[#feeds + 1] = ids[i]
      feeds[#feeds + 1] = token == '1:1' and '1' or string.match(token, '^(%d+)') -- what most are, without a pattern
    end
  end
  if #over > 0 then
    redis.call('HDEL', finished, unpack(over)) -- first, for it asks for no memory: so a full Redis refuses neither
    remember(KEYS[3], KEYS[4], tonumber(ARGV[3]), feeds)
  end
end
redis.call('XACK', outcomes, ARGV[1], unpack(ARGV, 4, last))
return redis.call('XDEL', outcomes, unpack(ARGV, 4, last))
