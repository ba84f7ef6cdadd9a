-- Take jobs out that no worker has; ask for the end of those that one has.
-- KEYS[1] hash: jobs, id -> record
-- KEYS[2] hash: attempts, id -> feed:attempt:worker:started:sequence of what a worker has
-- KEYS[3] hash: between, id -> feed:attempts:due of what waits between two attempts
-- KEYS[4] hash: finished, id -> feed:attempt of an end that is not settled
-- KEYS[5] hash: cancels, ids that somebody wants to end
-- KEYS[6] hash: notes, id -> what its handler said
-- KEYS[7] zset: unhandled, ids of jobs that were returned because a worker had no handler
-- ARGV[1..] ids
-- Returns for each d (removed; its entry is dropped when it is met), r (running, or ended) or u (unknown)
local jobs, attempts, between, finished, cancels, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local answer = {}
for i, id in ipairs(ARGV) do
  if redis.call('HEXISTS', finished, id) == 1 then
    answer[i] = 'r'
  elseif redis.call('HEXISTS', attempts, id) == 1 then
    redis.call('HSET', cancels, id, '1')
    answer[i] = 'r'
  elseif redis.call('HDEL', jobs, id) == 1 then
    for _, key in ipairs({between, cancels, notes}) do redis.call('HDEL', key, id) end
    redis.call('ZREM', KEYS[7], id)
    answer[i] = 'd'
  else
    answer[i] = 'u'
  end
end
return table.concat(answer)
