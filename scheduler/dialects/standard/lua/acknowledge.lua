-- Delete settled results, and remember for a while which jobs have ended: a push of them can still arrive.
-- KEYS[1] stream: results of the ledger
-- KEYS[2] hash: finished, id -> mark of a result that is not settled
-- KEYS[3] hash: settled, id -> epoch of jobs that were settled recently
-- KEYS[4] hash: settled:before, the same of the time before
-- ARGV[1] consumer group
-- ARGV[2] number of stream entries
-- ARGV[3] how long a settled job is remembered at least, in ms
-- ARGV[4..] ids of the stream entries, then id and epoch:attempt of each job that has ended
-- Returns how many stream entries were deleted
local results, finished = KEYS[1], KEYS[2]
local last = 3 + tonumber(ARGV[2])
local CHUNK = 500

-- include: settling/remember

for first = last + 1, #ARGV, 2 * CHUNK do
  local ids, over, epochs = {}, {}, {}
  for i = first, math.min(first + 2 * CHUNK, #ARGV) - 1, 2 do ids[#ids + 1] = ARGV[i] end
  for i, mark in ipairs(redis.call('HMGET', finished, unpack(ids))) do
    local token = ARGV[first + 2 * i - 1]
    if mark and string.sub(mark, 1, #token + 3) == '1:' .. token .. ':' then
      over[#over + 1] = ids[i]
      epochs[#epochs + 1] = ids[i]
      epochs[#epochs + 1] = token == '1:1' and '1' or string.match(token, '^(%d+)') -- most are read without a pattern
    end
  end
  if #over > 0 then
    redis.call('HDEL', finished, unpack(over)) -- first, because it needs no memory: a full Redis refuses no later write
    remember(KEYS[3], KEYS[4], tonumber(ARGV[3]), epochs)
  end
end
redis.call('XACK', results, ARGV[1], unpack(ARGV, 4, last))
return redis.call('XDEL', results, unpack(ARGV, 4, last))
