-- Find ends that workers of others made of what a ledger fed, and append them to its outcomes, each once.
-- The look through all that was fed also finds results that the stream has lost, and appends them again.
-- Events say where to look; what is true is in the job, unless somebody removed it.
-- KEYS[1] hash: meta of the queue; the names of all other keys begin as this does
-- ARGV[1] installation: whose ledger
-- ARGV[2] most events, or jobs, to look at
-- ARGV[3] empty, or where to go on through all that was fed
-- Returns {how many ends; how many events were read; where to go on through all that was fed, 0: nowhere; last event;
-- 1 if events may be gone that nobody read, or 0; how many of the ends the stream had lost}
local base, installation, most = string.sub(KEYS[1], 1, -5), ARGV[1], ARGV[2]
local ring = base .. 'ring:' .. installation
local fed, cursor, outcomes = ring .. ':fed', ring .. ':cursor', ring .. ':outcomes'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local HINTS = {completed = 2, failed = 2, delayed = 1, waiting = 1} -- those of an end say most
local ends, marks, added, lost = {}, {}, {}, 0

-- include: job
-- include: settling/has_result

-- Whatever is written there, it was not later than now.
local function moment(text)
  return math.min(tonumber(string.match(text or '', '^%d+')) or now, now)
end

-- `at`: when the event of the end was recorded, by Redis's clock. Without the event there is the worker's clock alone.
local function add(id, job, state, attempt, rest, at)
  local feed, started, ended = tonumber(job.feed), moment(job.processedOn), moment(job.finishedOn or at)
  rest.recorded = moment(at or job.finishedOn)
  local worker, sequence = job.pb or 'bullmq', tonumber(sequence_of(job))
  local previous = previous_of(job, (tonumber(job.ats) or 0) - 1)
  rest.previous_attempt_id = string.match(previous, '^[^:]+$')
  rest.uncharged = tonumber(job.uncharged)
  ends[#ends + 1] = cjson.encode({job.tenant, id, feed, attempt, state, started, ended, worker, sequence, rest})
  local token = feed .. ':' .. attempt
  if state == 'retrying' then
    redis.call('HSET', fed, id, token .. ':' .. job.tenant)
  else
    marks[#marks + 1] = {id, token}
    added[id] = true
  end
end

local function failure(job, reason, opts)
  local lost = string.find(reason or '', 'job stalled more than', 1, true) == 1
  local spent = lost or (tonumber(job.atm) or 0) >= rules_of(opts)
  return spent and 'dead_letter' or 'failed', lost and 'system' or spent and 'temporary' or 'permanent'
end

-- A job that somebody removed, or replaced by one of no ledger: only the event is left of its end.
local function from_event(id, told, event)
  local feed, attempt, tenant = string.match(told, '^(%d+):(%d+):(.*)$')
  local job = {feed = feed, tenant = tenant}
  if event.event == 'completed' then
    add(id, job, 'completed', attempt + 1, {result = event.returnvalue}, event.at)
  elseif event.event == 'failed' then
    add(id, job, 'failed', attempt + 1, {error = event.failedReason, category = 'permanent'}, event.at)
  end
end

-- The entry that a mark names is looked up for all that was fed only: events are of ends that have just been appended.
local function look(id, event)
  local told, mark = redis.call('HGET', fed, id), redis.call('HGET', base .. 'ring:finished', id)
  if not told or added[id] or mark and (event.event or has_result(mark)) then return end
  local key = base .. id
  local job = read_job(key, BRIEF)
  if not (job.name and job.tenant and string.match(job.feed or '', '^%d+$')) then return from_event(id, told, event) end
  local rest = redis.call('HMGET', key, 'returnvalue', 'failedReason', 'finishedOn', 'opts')
  local attempt, before = attempts_of(job), tonumber(string.match(told, '^%d+:(%d+)'))
  local at = HINTS[event.event] == 2 and event.at or nil
  job.finishedOn = rest[3]
  if redis.call('ZSCORE', base .. 'completed', id) then
    add(id, job, 'completed', attempt, {result = rest[1] or 'null'}, at)
  elseif redis.call('ZSCORE', base .. 'failed', id) then
    local state, category = failure(job, rest[2], rest[4])
    add(id, job, state, attempt, {error = rest[2] or '', category = category}, at)
  elseif attempt > before then
    local due = redis.call('ZSCORE', base .. 'delayed', id)
    local delay = due and math.max(0, math.floor(due / 4096) - now) * 1000 or 0
    add(id, job, 'retrying', attempt, {error = rest[2] or 'its worker was lost', category = 'temporary', delay = delay})
  end
end

local function read_events()
  local since, hints, ids = redis.call('GET', cursor) or '0-0', {}, {}
  local gone = since ~= '0-0' and #redis.call('XRANGE', base .. 'events', since, since) == 0
  local events = redis.call('XRANGE', base .. 'events', '(' .. since, '+', 'COUNT', most)
  for _, entry in ipairs(events) do
    local event = {}
    for i = 1, #entry[2], 2 do event[entry[2][i]] = entry[2][i + 1] end
    event.at = string.match(entry[1], '^%d+')
    local id, weight = event.jobId, HINTS[event.event]
    if id and weight then
      if not hints[id] then ids[#ids + 1] = id end
      if not hints[id] or weight >= HINTS[hints[id].event] then hints[id] = event end
    end
    since = entry[1]
  end
  for _, id in ipairs(ids) do look(id, hints[id]) end
  if #events > 0 then
    redis.call('SET', cursor, since)
  elseif gone then
    since = '0-0'
    redis.call('DEL', cursor)
  end
  return #events, since, gone and 1 or 0
end

local read, last, gone = read_events()
local following = '0'
if ARGV[3] ~= '' then
  local page = redis.call('HSCAN', fed, ARGV[3], 'COUNT', most)
  following = page[1]
  for i = 1, #page[2], 2 do
    local id, before = page[2][i], #marks
    local mark = redis.call('HEXISTS', base .. 'ring:finished', id)
    look(id, {})
    if #marks > before then lost = lost + mark end
  end
end
if #ends > 0 then
  local entry = redis.call('XADD', outcomes, '*', 'ends', '[' .. table.concat(ends, ',') .. ']')
  for _, mark in ipairs(marks) do redis.call('HSET', base .. 'ring:finished', mark[1], mark[2] .. ':' .. entry) end
end
return {#ends, read, following, last, gone, lost}
