-- Part of finish: end deliveries, each if it is still the worker's.
-- ARGV[12..] 7 values for each: id; verb:delay:attempts:traces:count:age:most, or verb:delay:0:traces:previous; token;
-- value, the result or the reason; trace; progress as JSON, or empty; end as JSON, or empty. Verbs: completed, failed,
-- retry, first (a retry that goes first), back, return (back, after the attempt had begun), redeliver (back, of an
-- orphaned lease that had not begun), later (back with a delay, before the handler was called; 0: it grows, because the
-- worker has no handler). previous: the id of the last attempt that had begun.
local RESULT, closed, handled = 7, {}, {}

-- A lock that ran out is nobody's as long as nobody took the job since.
local function holds(token, lock, job)
  local same = job.ats == string.match(token, ':(%d+):%d+:[^:]*:%d+$')
  if taking_back then return same and not lock end
  if string.sub(token, 1, #worker + 1) ~= worker .. ':' then return false end
  return lock == token or same and not lock and job.pb == worker
end

local function note_end(id, job, token, terminal, text)
  local ledger = job.installation
  if not ledger or text == '' then return end
  local told = string.match(token, ':(%d+:%d+):%d+:%d+:[^:]*:%d+$')
  if terminal then
    tombs[ledger] = tombs[ledger] or {}
    table.insert(tombs[ledger], id)
    table.insert(tombs[ledger], told)
  else
    fed[ledger] = fed[ledger] or {}
    table.insert(fed[ledger], id)
    table.insert(fed[ledger], told .. ':' .. (job.tenant or ''))
  end
  ends[ledger] = ends[ledger] or {}
  table.insert(ends[ledger], text)
end

-- A job of a ledger that will run again. Others keep the fields that BullMQ knows.
local function note_previous(key, job, previous)
  if job.feed then redis.call('HSET', key, 'previous', (job.ats or 0) .. ':' .. previous) end
end

-- The attempt is not charged, but its number is used. BullMQ's counters do not change: its workers compare them with
-- their limit.
local function count_return(id, key, job, token)
  if not job.feed then return end
  local feed, attempt = string.match(token, ':(%d+):(%d+):%d+:%d+:[^:]*:%d+$')
  redis.call('HSET', key, 'uncharged', (tonumber(job.uncharged) or 0) + 1, 'attempt', attempt)
  if job.installation then
    fed[job.installation] = fed[job.installation] or {}
    table.insert(fed[job.installation], id)
    table.insert(fed[job.installation], table.concat({feed, attempt, job.tenant or ''}, ':'))
  end
end

local function cannot_complete(id, key)
  if redis.call('EXISTS', key .. ':dependencies', key .. ':unsuccessful') == 0 then return nil end
  if redis.call('EXISTS', key .. ':dependencies') == 1 then
    return 'Job ' .. id .. ' has pending dependencies. moveToFinished'
  end
  return 'Cannot complete job ' .. id .. ' because it has at least one failed child. moveToFinished'
end

local function end_one(id, lock, head, token, value, trace, progress, text)
  local key = base .. id
  local job = read_job(key, BRIEF)
  if not (job.name and holds(token, lock, job)) then return '0' end
  if redis.call('LREM', base .. 'active', -1, id) == 0 then return '0' end
  local verb, delay, attempts, limit, keep = string.match(head, '^(%a+):(%d+):(%d+):(-?%d+):(.*)$')
  local stack = trace
  if lock then redis.call('DEL', key .. ':lock') end
  unlocked[#unlocked + 1] = id
  if progress ~= '' then
    redis.call('HSET', key, 'progress', progress)
    say(base, 'progress', 'jobId', id, 'data', progress)
  end
  if verb == 'completed' then
    local reason = cannot_complete(id, key)
    if reason then
      attempts, limit, keep = rules_of(redis.call('HGET', key, 'opts'))
      verb, value, stack = 'failed', reason, reason
    end
  end
  if verb ~= 'later' then handled[#handled + 1] = id end
  if verb == 'later' then -- as `moveToDelayed` of a job in BullMQ: the attempt does not count
    local due = return_later(base .. 'ring:unhandled', id, tonumber(delay))
    redis.call('HSET', key, 'delay', due - now)
    put_later(base, id, due)
    note_previous(key, job, keep)
  elseif verb == 'back' or verb == 'return' or verb == 'redeliver' then
    note_previous(key, job, keep)
    if verb ~= 'back' then count_return(id, key, job, token) end
    if verb == 'redeliver' then redis.call('HSET', key, 'redelivered', 1) end
    local score = tonumber(string.match(token, '([^:]*):%d+$'))
    backs[#backs + 1] = {id, tonumber(job.priority) or 0, score, verb == 'redeliver'}
    returned[id] = true
  elseif verb == 'retry' or verb == 'first' then
    try_again(id, job, tonumber(delay), value, trace, tonumber(limit), verb == 'first' or taking_back, taking_back)
    note_previous(key, job, keep)
    note_end(id, job, token, false, text)
  else
    conclude(id, job, verb, value, stack, tonumber(attempts), tonumber(limit), keep)
    note_end(id, job, token, true, text)
  end
  return '1'
end

local function end_all()
  if count == 0 then return '' end
  local answer, locks = {}, {}
  for i = 1, count do locks[i] = base .. ARGV[RESULT * i + 5] .. ':lock' end
  local held = redis.call('MGET', unpack(locks))
  for i = 1, count do
    local id = ARGV[RESULT * i + 5]
    answer[i] = closed[id] and '0' or end_one(id, held[i], unpack(ARGV, RESULT * i + 6, RESULT * i + 11))
    closed[id] = closed[id] or answer[i] == '1'
  end
  forget_returns(base .. 'ring:unhandled', handled)
  return table.concat(answer)
end
