-- Forget ends that are in the ledger, and that their jobs ended.
-- KEYS[1] stream: outcomes
-- KEYS[2] hash: finished, id -> feed:attempt of an end that is not settled
-- ARGV[1] consumer group
-- ARGV[2] number of entries
-- ARGV[3..] ids of the entries, then ids of the jobs that have ended
-- Returns how many entries were there
local outcomes, finished = KEYS[1], KEYS[2]
local entries, jobs = {}, {}
for i = 3, #ARGV do
  local list = i < 3 + tonumber(ARGV[2]) and entries or jobs
  list[#list + 1] = ARGV[i]
end
redis.call('XACK', outcomes, ARGV[1], unpack(entries))
local there = redis.call('XDEL', outcomes, unpack(entries))
for i = 1, #jobs, 1000 do
  redis.call('HDEL', finished, unpack(jobs, i, math.min(i + 999, #jobs)))
end
return there
