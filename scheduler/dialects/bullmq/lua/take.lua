-- Part of finish: put jobs into the worker's hands.
local MOST_BYTES, CHUNK, DUE = 16 * 1024 * 1024, 100, 1000
local MANUAL = 9007199254740991 -- a limit that somebody set by hand
local MOST_PASSED = 100 -- jobs of full types that a call looks past
local bytes, pause, sequence, passed = 0, -1, tonumber(ARGV[9]), 0
local free = ARGV[10] ~= '' and cjson.decode(ARGV[10]) -- by type, how many jobs may be leased
local left, left_scored = {}, {} -- ids of `wait` that stay there; scores and ids of `prioritized`

local function promote()
  local due = redis.call('ZRANGEBYSCORE', base .. 'delayed', '-inf', (now + 1) * SEQUENCE - 1, 'LIMIT', 0, DUE)
  if #due == 0 then return end
  redis.call('ZREM', base .. 'delayed', unpack(due))
  for _, id in ipairs(due) do
    local job = read_job(base .. id, {'name', 'priority'})
    if job.name then
      put(base, id, tonumber(job.priority) or 0)
      redis.call('HSET', base .. id, 'delay', 0)
      say(base, 'waiting', 'jobId', id, 'prev', 'delayed')
    end
  end
end

-- What a version 5 left in its own list, or will look for there.
local function gather()
  local known = facts(base)
  if not known.five then return end
  if known.paused then
    while redis.call('RPOPLPUSH', base .. 'wait', base .. 'paused') do end
  else
    local left = redis.call('LRANGE', base .. 'paused', 0, 6999)
    if #left > 0 then
      redis.call('RPUSH', base .. 'wait', unpack(left))
      redis.call('LTRIM', base .. 'paused', #left, -1)
    end
  end
end

-- How many may be taken: less than wanted when the queue is paused, or has a limit on them.
local function allowed()
  local known, n = facts(base), wanted
  if known.paused then return 0 end
  if known.most then n = math.min(n, known.most - redis.call('LLEN', base .. 'active')) end
  local ttl = redis.call('PTTL', base .. 'limiter') -- one that does not run out limits nobody
  local used = ttl > 0 and tonumber(redis.call('GET', base .. 'limiter')) or 0
  if known.max then n = math.min(n, known.max - used) end
  if used >= MANUAL then n = 0 end
  if n <= 0 and used > 0 then pause = ttl end
  return n
end

local function begin(told, id, score)
  local key = base .. id
  local job = read_job(key, FIELDS)
  if not job.name or returned[id] then return false end -- it was removed, or this call puts it back
  if job.attemptsMade then -- a producer wrote what hides the real counter
    job.atm = tostring(math.max(tonumber(job.atm) or 0, tonumber(job.attemptsMade) or 0))
    redis.call('HSET', key, 'atm', job.atm)
    redis.call('HDEL', key, 'attemptsMade')
  end
  local before, attempt, previous, lease_of = count_of(job.ats), attempts_of(job) + 1, '', {}
  local starts = before + 1
  if job.feed then
    lease_of = {'lease', starts .. ':' .. string.format('%d', sequence)}
    previous = previous_of(job, before)
    -- The last start was not put back or retried by us: a worker of BullMQ did that, or it moved our lost job.
    if before > (tonumber(string.match(job.previous or job.attempt or '', '^%d+')) or 0) then
      previous = (job.pb or 'bullmq') .. ':' .. sequence_of(job)
      lease_of[3], lease_of[4] = 'previous', before .. ':' .. previous
    end
  end
  redis.call('HSET', key, 'processedOn', now, 'pb', worker, 'ats', starts, unpack(lease_of))
  say(base, 'active', 'jobId', id, 'prev', 'waiting')
  if job.defa then -- somebody decided that it has failed, and left it to us
    redis.call('LREM', base .. 'active', 1, id)
    conclude(id, job, 'failed', job.defa, job.defa, rules_of(job.opts))
    return false
  end
  local token = table.concat({worker, job.feed or 0, attempt, starts, now, score, string.format('%d', sequence)}, ':')
  sequence = sequence + 1
  redis.call('SET', key .. ':lock', token, 'PX', lease)
  tell_job(told, id, token, job, previous)
  bytes = bytes + #(job.data or '') + #(job.opts or '')
  return true
end

-- Leave a job where it was popped.
local function leave(id, score)
  if score then
    left_scored[#left_scored + 1] = score
    left_scored[#left_scored + 1] = id
  else
    left[#left + 1] = id
  end
end

local function restore()
  for i = 1, #left / 2 do left[i], left[#left + 1 - i] = left[#left + 1 - i], left[i] end
  if #left > 0 then redis.call('RPUSH', base .. 'wait', unpack(left)) end
  if #left_scored > 0 then redis.call('ZADD', base .. 'prioritized', unpack(left_scored)) end
end

-- Begin up to `room` jobs, and leave those of full types: they are not active for a moment, and have no event.
local function begin_some(told, ids, scores, room)
  local begun = 0
  for i, id in ipairs(ids) do
    local name = redis.pcall('HGET', base .. id, 'name') -- an error for what is no job
    local slots = type(name) == 'string' and free[name]
    if begun >= room or passed > MOST_PASSED then
      leave(id, scores[i])
    elseif slots and slots <= 0 then
      leave(id, scores[i])
      passed = passed + 1
    else
      redis.call('LPUSH', base .. 'active', id)
      if begin(told, id, scores[i] or '') then
        begun = begun + 1
        if slots then free[name] = slots - 1 end
      else
        redis.call('LREM', base .. 'active', 1, id)
      end
    end
  end
  return begun
end

local function begin_all(told, ids, scores, room)
  if free then return begin_some(told, ids, scores, room) end
  redis.call('LPUSH', base .. 'active', unpack(ids))
  local begun = 0
  for i, id in ipairs(ids) do
    if begin(told, id, scores[i] or '') then
      begun = begun + 1
    else
      redis.call('LREM', base .. 'active', 1, id)
    end
  end
  return begun
end

local function next_ids(n)
  local ids, scores = redis.call('RPOP', base .. 'wait', n) or {}, {}
  if #ids > 0 then return ids, scores end
  local popped = redis.call('ZPOPMIN', base .. 'prioritized', n)
  for i = 1, #popped, 2 do ids[#ids + 1], scores[#scores + 1] = popped[i], popped[i + 1] end
  -- The counter orders jobs of one priority: it is kept while some of them are on their way back.
  if #ids == 0 and passed == 0 and #backs == 0 then redis.call('DEL', base .. 'pc') end
  return ids, scores
end
