-- Forget ends that are in the ledger, and that their jobs ended.
-- KEYS[1] stream: outcomes
-- KEYS[2] hash: finished, id -> feed:attempt of an end that is not settled
-- ARGV[1] consumer group
-- ARGV[2] number of entries
-- ARGV[3..] ids of the entries, then id and feed:attempt of each job that has ended
-- Returns how many entries were there
local outcomes, finished = KEYS[1], KEYS[2]
local last = 2 + tonumber(ARGV[2])
for i = last + 1, #ARGV, 2 do
  if redis.call('HGET', finished, ARGV[i]) == ARGV[i + 1] then redis.call('HDEL', finished, ARGV[i]) end
end
redis.call('XACK', outcomes, ARGV[1], unpack(ARGV, 3, last))
return redis.call('XDEL', outcomes, unpack(ARGV, 3, last))
