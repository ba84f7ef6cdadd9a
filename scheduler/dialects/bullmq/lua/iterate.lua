-- Add the next job of a job scheduler, when its newest one was taken.
-- KEYS[1] hash: meta of the queue; the names of all other keys begin as this does
-- ARGV[1] compat: auto, 5 or 6
-- ARGV[2] id of the job scheduler
-- ARGV[3] id of the job that was taken
-- ARGV[4] when the next is due by its pattern, in ms; empty: by its interval
-- ARGV[5] options of the next as JSON
-- Returns 1 if it was added
local base, compat, scheduler = string.sub(KEYS[1], 1, -5), ARGV[1], ARGV[2]
local due, options = tonumber(ARGV[4]), cjson.decode(ARGV[5])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- include: queue
-- include: store

-- Slots are one interval apart; of those that were missed, none is made up for.
local function by_interval(last, every, offset)
  local following = last + every
  if following >= now then return following end
  local slot = math.floor(now / every) * every + offset
  return slot > now and slot or slot + every
end

local function name_of(moment)
  return 'repeat:' .. scheduler .. ':' .. string.format('%.0f', moment)
end

local template = redis.call('HMGET', base .. 'repeat:' .. scheduler, 'name', 'data', 'every', 'offset', 'ic')
local last = tonumber(redis.call('ZSCORE', base .. 'repeat', scheduler) or nil)
if not last or not template[5] or ARGV[3] ~= name_of(last) then return 0 end
local every = tonumber(template[3])
if every then due = by_interval(last, every, tonumber(template[4]) or 0) end
if not due then return 0 end
local id = name_of(due)
if redis.call('EXISTS', base .. id) == 1 then
  say(base, 'duplicated', 'jobId', id)
  return 0
end
redis.call('ZADD', base .. 'repeat', due, scheduler)
redis.call('HINCRBY', base .. 'repeat:' .. scheduler, 'ic', 1)
redis.call('INCR', base .. 'id')
options.delay, options.jobId, options.prevMillis = math.max(0, due - now), id, not every and due or nil
options.timestamp, options.repeatJobKey = now, scheduler
local job = {name = template[1], data = template[2] or '{}', opts = cjson.encode(options), timestamp = now}
job.delay, job.priority, job.lifo, job.rjk = options.delay, options.priority, options.lifo, scheduler
store(base, id, job)
tell()
return 1
