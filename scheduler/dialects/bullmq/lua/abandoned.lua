-- List jobs of ledgers that no worker will find: active without a lock at the last check too, and no worker checks.
-- KEYS[1] hash: meta of the queue; the names of all other keys begin as this does
-- ARGV[1] how long an instance does not check again, in ms; 0: check now
-- ARGV[2] maximum of jobs
-- Returns {the values of each job that `tell_lost` appends; id and begun mark of those whose worker has one}
--
-- Workers check for stalled jobs as long as one of them lives: each check sets `stalled-check` for its interval. While
-- that key exists, this script leaves all jobs to them. It never sets the key, or it would keep workers from checking;
-- nor does it move jobs that are of no ledger, because it does not know the maxStalledCount of their workers.
local base, interval = string.sub(KEYS[1], 1, -5), tonumber(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local CHUNK = 5000

-- include: job
-- include: lost

if redis.call('EXISTS', base .. 'active') == 0 then return {{}, {}} end
if interval > 0 then
  if redis.call('EXISTS', base .. 'stalled-check') == 1 then return {{}, {}} end
  if not redis.call('SET', base .. 'ring:stalled-check', now, 'PX', interval, 'NX') then return {{}, {}} end
end

local stalled, seen, found, told, marks, count = base .. 'ring:stalled', {}, {}, {}, {}, 0
for _, each in ipairs(redis.call('SMEMBERS', stalled)) do seen[each] = true end
for _, id in ipairs(redis.call('LRANGE', base .. 'active', 0, -1)) do
  local job = redis.call('EXISTS', base .. id .. ':lock') == 0 and read_job(base .. id, BRIEF)
  if job and job.name and job.feed then
    local start = (job.ats or 0) .. ':' .. id -- a lease that began after the last check is not one that was seen
    found[#found + 1] = start
    if seen[start] and count < tonumber(ARGV[2]) then
      tell_lost(told, marks, id, read_job(base .. id, FIELDS))
      count = count + 1
    end
  end
end
redis.call('DEL', stalled)
for first = 1, #found, CHUNK do
  redis.call('SADD', stalled, unpack(found, first, math.min(first + CHUNK - 1, #found)))
end
return {told, marks}
