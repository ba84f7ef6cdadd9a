-- Look for jobs that were active the last time too, and whose lock is gone.
-- KEYS[1] hash: meta of the queue; the names of all other keys begin as this does
-- ARGV[1] compat: auto, 5 or 6
-- ARGV[2] how long nobody needs to look again, in ms; 0: anybody may at once
-- ARGV[3] how often a job may be lost before it fails
-- ARGV[4] most that are told
-- Returns {how many went back to be the next; the values of each job that `tell_lost` appends: those that a ledger fed,
-- for which the caller decides; id and begun mark of those whose worker has one}
local base, compat, interval = string.sub(KEYS[1], 1, -5), ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local CHUNK = 5000

-- include: queue
-- include: job
-- include: lost

if interval > 0 and not redis.call('SET', base .. 'stalled-check', now, 'PX', interval, 'NX') then
  return {0, {}, {}}
end

local function lives(scheduler)
  if not scheduler then return false end
  return redis.call('EXISTS', base .. 'repeat:' .. scheduler) == 1
end

local function put_first(id, job)
  local key = base .. id
  redis.call('LREM', base .. 'active', 1, id)
  local count = redis.call('HINCRBY', key, 'stc', 1)
  if count > tonumber(ARGV[3]) and not lives(job.rjk) then
    redis.call('HSET', key, 'defa', 'job stalled more than allowable limit')
  end
  put(base, id, 0, true)
  say(base, 'waiting', 'jobId', id, 'prev', 'active')
  say(base, 'stalled', 'jobId', id)
end

local active = {}
for _, id in ipairs(redis.call('LRANGE', base .. 'active', 0, -1)) do active[id] = true end
local moved, told, marks, fed = 0, {}, {}, 0
for _, id in ipairs(redis.call('SMEMBERS', base .. 'stalled')) do
  if active[id] and fed < tonumber(ARGV[4]) and redis.call('EXISTS', base .. id .. ':lock') == 0 then
    local job = read_job(base .. id, FIELDS)
    if not job.name then
      redis.call('LREM', base .. 'active', 1, id)
    elseif not job.feed then
      put_first(id, job)
      moved = moved + 1
    else
      tell_lost(told, marks, id, job)
      fed = fed + 1
    end
  end
end
redis.call('DEL', base .. 'stalled')
local ids = redis.call('LRANGE', base .. 'active', 0, -1)
for first = 1, #ids, CHUNK do
  redis.call('SADD', base .. 'stalled', unpack(ids, first, math.min(first + CHUNK - 1, #ids)))
end
tell()
return {moved, told, marks}
