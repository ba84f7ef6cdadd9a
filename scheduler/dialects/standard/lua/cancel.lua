-- Remove jobs, and request the cancellation of those that workers lease, or by force remove these too.
-- Or withdraw one job: remove it if none of its attempts has begun that the ledger does not have, and refuse late
-- pushes of its epoch for a while.
-- A worker whose lease was removed learns it from its next renewal, and its result is refused. The id stays in the set
-- of that worker until the result is refused, or until the worker is recovered: both drop ids that have no lease.
-- KEYS[1] hash: jobs, id -> record
-- KEYS[2] hash: leases, id -> lease
-- KEYS[3] hash: state, id -> blocked, retrying, or waiting with the counts of earlier attempts
-- KEYS[4] hash: finished, id -> mark of a result that is not settled
-- KEYS[5] zset: waiting, entries by level and start time
-- KEYS[6] zset: blocked, entries that a worker could not take, by reason
-- KEYS[7] hash: blocked:counts, reason -> number of entries
-- KEYS[8] zset: retrying, entries by due time in ms
-- KEYS[9] hash: cancels, ids of leased jobs whose cancellation is requested
-- KEYS[10] hash: notes, id -> progress
-- KEYS[11] stream: results of the ledger
-- KEYS[12] zset: turns, virtual times of levels and next starts of tenants
-- KEYS[13] hash: settled, id -> epoch of jobs that were settled recently
-- KEYS[14] hash: settled:before, the same of the time before
-- ARGV[1] force, or withdraw:epoch:attempts:ms (the attempts in the ledger, and for how long late pushes are
-- refused); empty: leave leased jobs to their workers
-- ARGV[2..] ids
-- Returns {for each d (removed), r (leased), f (finished, not settled), x (refused: it has a newer format) or
-- u (unknown); numbers of newer formats}
local jobs, leases, state, finished, waiting = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local blocked, counts, retrying, cancels, notes, results = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local force = ARGV[1] == 'force'
local withdrawn, recorded, while_ = string.match(ARGV[1], '^withdraw:(%d+):(%d+):(%d+)$')

-- include: formats
-- include: discount
-- include: remove
-- include: has_result
-- include: settling/remember

local function is_newer(id, lease, record)
  if newer_format(lease or '') or newer_format(record or '') then return true end
  return newer_format(redis.call('HGET', state, id) or '')
end

-- Returns whether a job has attempts that the ledger does not have.
local function is_ahead(id, record)
  local epoch, attempts = string.match(record, '^1:(%d+):(%d+):')
  local last, more = string.match(redis.call('HGET', state, id) or '', '^1:%a+:(%d+):(%d+):')
  if last and last == epoch then attempts = more end
  return tonumber(attempts or 0) > tonumber(recorded)
end

local marks, leased = redis.call('HMGET', finished, unpack(ARGV, 2)), redis.call('HMGET', leases, unpack(ARGV, 2))
local answer, removed = {}, {}
for i = 1, #ARGV - 1 do
  local id, lease = ARGV[i + 1], leased[i]
  local record = (force or not lease) and redis.call('HGET', jobs, id)
  if lease and not force then
    if not withdrawn then redis.call('HSET', cancels, id, '1') end
    answer[i] = 'r'
  elseif (record or lease) and is_newer(id, lease, record) then
    answer[i] = 'x'
  elseif withdrawn and record and is_ahead(id, record) then
    answer[i] = 'r'
  elseif record or lease then
    if not lease then remove(id, record) end
    redis.call('HDEL', jobs, id) -- now, because an id can be in the list twice
    removed[#removed + 1] = id
    answer[i] = 'd'
  else
    answer[i] = marks[i] and has_result(marks[i]) and 'f' or 'u'
  end
end
if #removed > 0 then
  for _, key in ipairs({leases, state, cancels, notes}) do redis.call('HDEL', key, unpack(removed)) end
  if redis.call('EXISTS', jobs) == 0 then redis.call('PEXPIRE', KEYS[12], 0) end
end
if withdrawn and (answer[1] == 'd' or answer[1] == 'u') then
  remember(KEYS[13], KEYS[14], tonumber(while_), {ARGV[2], withdrawn})
end
return {table.concat(answer), newer_formats()}
