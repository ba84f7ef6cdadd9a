-- Take jobs out, and ask for the end of those that workers have, or by force take these out too.
-- A worker whose lease was taken away learns it from its next renewal, and its result is refused. The entry stays in
-- its list until then, or until the worker is silent: both drop an entry without a lease.
-- KEYS[1] hash: jobs, id -> record
-- KEYS[2] hash: attempts, id -> feed:attempt:worker:started:sequence of what a worker has
-- KEYS[3] hash: between, id -> feed:attempts:due of what waits between two attempts
-- KEYS[4] hash: finished, id -> feed:attempt:stream entry of an end that is not settled
-- KEYS[5] hash: cancels, ids that somebody wants to end
-- KEYS[6] hash: notes, id -> what its handler said
-- KEYS[7] zset: unhandled, ids of jobs that were returned because a worker had no handler
-- KEYS[8] hash: returned, id -> what is known of the attempts before
-- KEYS[9] stream: outcomes of the ledger
-- ARGV[1] force; empty: leave leased jobs to their workers
-- ARGV[2..] ids
-- Returns for each d (removed; its entry is dropped when it is met), r (running), f (finished, not settled) or
-- u (unknown)
local jobs, attempts, between, finished, cancels, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local force, answer, outcomes = ARGV[1] == 'force', {}, KEYS[9]

-- include: settling/has_result

for i = 2, #ARGV do
  local id, found = ARGV[i], 'u'
  local mark = redis.call('HGET', finished, id)
  if mark and has_result(mark) then
    found = 'f'
  elseif not force and redis.call('HEXISTS', attempts, id) == 1 then
    redis.call('HSET', cancels, id, '1')
    found = 'r'
  elseif redis.call('HDEL', jobs, id) + redis.call('HDEL', attempts, id) > 0 then
    for _, key in ipairs({between, cancels, notes, KEYS[8]}) do redis.call('HDEL', key, id) end
    redis.call('ZREM', KEYS[7], id)
    found = 'd'
  elseif mark then
    redis.call('HDEL', finished, id)
  end
  answer[#answer + 1] = found
end
return table.concat(answer)
