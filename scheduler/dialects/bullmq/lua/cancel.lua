-- Take jobs out, and ask for the end of those that workers of ours have, or by force take out what any worker has.
-- Or withdraw one job: remove it if none of its attempts has begun that the ledger does not have, and refuse late
-- pushes of its feed for a while.
-- A worker, ours or Node's, whose job and lock were taken away cannot end it: ours learns it from its next renewal and
-- its result is refused, on Node moveToFinished fails with "Missing key for job".
-- KEYS[1] hash: meta of the queue; the names of all other keys begin as this does
-- ARGV[1] compat: auto, 5 or 6
-- ARGV[2] force, or withdraw:feed:attempts:ms (the attempts in the ledger, and for how long late pushes are
-- refused); empty: leave the jobs that workers have to them
-- ARGV[3] installation: whose results they are
-- ARGV[4..] ids
-- Returns for each d (removed), r (running), f (finished, not settled), x (a worker that hears nothing has it) or
-- u (unknown)
local base, compat, force = string.sub(KEYS[1], 1, -5), ARGV[1], ARGV[2] == 'force'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- include: queue
-- include: parents
-- include: store
-- include: job
local outcomes = base .. 'ring:' .. ARGV[3] .. ':outcomes'
-- include: settling/has_result
-- include: settling/remember
local withdrawn, recorded, while_ = string.match(ARGV[2], '^withdraw:(%d+):(%d+):(%d+)$')

local function taken_out(id)
  for _, name in ipairs({'delayed', 'prioritized', 'waiting-children'}) do
    if redis.call('ZREM', base .. name, id) == 1 then return name end
  end
  for _, name in ipairs({'wait', 'paused'}) do
    if redis.call('LREM', base .. name, 1, id) == 1 then return name end
  end
end

-- By force, a job is taken from the worker that has it. Others may wait for its place, if there is a limit on how many
-- are active.
local function taken_away(id)
  if not force then return nil end
  redis.call('LREM', base .. 'active', 1, id)
  redis.call('SREM', base .. 'stalled', id)
  ready[base] = redis.call('EXISTS', base .. 'wait', base .. 'prioritized') > 0 or ready[base]
  return 'active'
end

local function cancel(id)
  local key = base .. id
  local job = read_job(key, BRIEF)
  local mark = redis.call('HGET', base .. 'ring:finished', id)
  if mark and has_result(mark) then return 'f' end
  if not job.name then
    if mark then redis.call('HDEL', base .. 'ring:finished', id) end
    return 'u'
  end
  if redis.call('ZSCORE', base .. 'completed', id) or redis.call('ZSCORE', base .. 'failed', id) then return 'f' end
  local lock = redis.call('GET', key .. ':lock')
  if lock and not force and not string.find(lock, '^[^:]+:%d+:%d+:%d+:%d+:[^:]*:%d+$') then return 'x' end
  if withdrawn and attempts_of(job) > tonumber(recorded) then return 'r' end
  local was = not lock and taken_out(id) or taken_away(id)
  if not was then
    if not withdrawn then redis.call('HSET', key, 'cancel', '1') end
    return 'r'
  end
  remove_keys(key)
  redis.call('ZREM', base .. 'ring:unhandled', id)
  if job.installation then redis.call('HDEL', base .. 'ring:' .. job.installation .. ':fed', id) end
  if job.deid then release(base, id, job.deid) end
  if job.parentKey then child_removed(key, job.parentKey, job.parent) end
  say(base, 'removed', 'jobId', id, 'prev', was)
  return 'd'
end

local answer = {}
for i = 4, #ARGV do answer[#answer + 1] = cancel(ARGV[i]) end
tell()
if withdrawn and (answer[1] == 'd' or answer[1] == 'u') then
  remember(base .. 'ring:settled', base .. 'ring:settled:before', tonumber(while_), {ARGV[4], withdrawn})
end
return table.concat(answer)
