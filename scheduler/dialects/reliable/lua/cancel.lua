-- Take jobs out, and ask for the end of those that workers have, or by force take these out too.
-- Or withdraw one job: remove it if none of its attempts has begun that the ledger does not have, and refuse late
-- pushes of its feed for a while.
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
-- KEYS[10] hash: settled, id -> feed of what ended and was settled lately
-- KEYS[11] hash: the same of a while before
-- KEYS[12] zset: retries, level and entry of what waits for its time
-- KEYS[13] list: the level of the job that is withdrawn
-- ARGV[1] force, or withdraw:feed:attempts:ms (the attempts in the ledger, and for how long late pushes are
-- refused); empty: leave leased jobs to their workers
-- ARGV[2..] ids; or id, level and entry of the job that is withdrawn
-- Returns for each d (removed; its entry is dropped when it is met), r (running), f (finished, not settled) or
-- u (unknown)
local jobs, attempts, between, finished, cancels, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local force, answer, outcomes = ARGV[1] == 'force', {}, KEYS[9]
local withdrawn, recorded, while_ = string.match(ARGV[1], '^withdraw:(%d+):(%d+):(%d+)$')

-- include: settling/has_result
-- include: settling/remember

-- Returns whether a job has attempts that the ledger does not have.
local function is_ahead(id)
  for _, key in ipairs({jobs, between}) do
    local attempts = string.match(redis.call('HGET', key, id) or '', '^%d+:(%d+):')
    if tonumber(attempts or 0) > tonumber(recorded) then return true end
  end
  return false
end

-- Removes the waiting entry of the job that is withdrawn, or it could be leased at its old level. Returns whether there
-- was one.
local function take_out()
  local _, _, level, entry = unpack(ARGV)
  return redis.call('LREM', KEYS[13], 1, entry) + redis.call('ZREM', KEYS[12], level .. entry) > 0
end

for i = 2, withdrawn and 2 or #ARGV do
  local id, found = ARGV[i], 'u'
  local mark = redis.call('HGET', finished, id)
  if mark and has_result(mark) then
    found = 'f'
  elseif not force and redis.call('HEXISTS', attempts, id) == 1 then
    if not withdrawn then redis.call('HSET', cancels, id, '1') end
    found = 'r'
  elseif withdrawn and (is_ahead(id) or redis.call('HEXISTS', jobs, id) == 1 and not take_out()) then
    found = 'r' -- without an entry: a worker of the original has it
  elseif redis.call('HDEL', jobs, id) + redis.call('HDEL', attempts, id) > 0 then
    for _, key in ipairs({between, cancels, notes, KEYS[8]}) do redis.call('HDEL', key, id) end
    redis.call('ZREM', KEYS[7], id)
    found = 'd'
  elseif mark then
    redis.call('HDEL', finished, id)
  end
  answer[#answer + 1] = found
end
if withdrawn and (answer[1] == 'd' or answer[1] == 'u') then
  remember(KEYS[10], KEYS[11], tonumber(while_), {ARGV[2], withdrawn})
end
return table.concat(answer)
