-- Say what is known of jobs.
-- KEYS[1] hash: meta of the queue; the names of all other keys begin as this does
-- ARGV[1..] ids
-- Returns of each {u (unknown), f (finished), r (running), b (before a retry is due) or w (waits); how many attempts
-- have ended; when the last began in ms, or empty; its note as JSON, or empty}
local base = string.sub(KEYS[1], 1, -5)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- include: job

local function where(id, job)
  if not job.name then return 'u' end
  if redis.call('ZSCORE', base .. 'completed', id) or redis.call('ZSCORE', base .. 'failed', id) then
    return job.installation and 'f' or 'u'
  end
  local due = redis.call('ZSCORE', base .. 'delayed', id)
  local waits = due or redis.call('ZSCORE', base .. 'prioritized', id)
  if not waits and (redis.call('EXISTS', base .. id .. ':lock') == 1 or redis.call('LPOS', base .. 'active', id)) then
    return 'r'
  end
  return due and now < due / 0x1000 and attempts_of(job) > (tonumber(job.attempt) or 0) and 'b' or 'w'
end

local answer = {}
for _, id in ipairs(ARGV) do
  local job = read_job(base .. id, BRIEF)
  local found = where(id, job)
  local note = redis.call('HGET', base .. id, 'note') or ''
  answer[#answer + 1] = {found, found == 'u' and 0 or attempts_of(job), job.processedOn or '', note}
end
return answer
