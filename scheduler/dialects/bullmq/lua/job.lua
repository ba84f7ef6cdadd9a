-- Part of some: read a job, and what a worker is told of it.
-- A token says whose attempt it is: worker:feed:attempt:starts:when it began in ms:the place it had among priorities.
local TOLD = 12
local FIELDS = {
  'name', 'data', 'opts', 'timestamp', 'priority', 'tenant', 'feed', 'installation', 'attempt', 'ring', 'note', 'rjk',
  'atm', 'ats', 'stc', 'attemptsMade', 'defa', 'parentKey', 'parent', 'deid', 'pb', 'processedOn',
}

local function read_job(key)
  local values, job = redis.call('HMGET', key, unpack(FIELDS)), {}
  for i, field in ipairs(FIELDS) do job[field] = values[i] end
  job.values = values
  return job
end

-- How many attempts of it have ended: for a ledger, one whose worker was lost is one of them.
local function attempts_of(job)
  local made = tonumber(job.atm) or 0
  if not job.ring then return made end
  return (tonumber(job.attempt) or 0) + made + (tonumber(job.stc) or 0)
end

local function tell_job(told, id, token, job)
  told[#told + 1] = id
  told[#told + 1] = token
  for i = 1, TOLD do told[#told + 1] = job.values[i] or '' end
end

-- What is kept of a job that failed, as its options say it: count:age in seconds:most at once.
local function keep_failed(job)
  local read, options = pcall(cjson.decode, job.opts or '{}')
  local rule = read and type(options) == 'table' and options.removeOnFail
  if rule == true then return '0:-1:1000' end
  if type(rule) == 'number' then return string.format('%d:-1:1000', rule) end
  if type(rule) ~= 'table' then return '-1:-1:1000' end
  return string.format('%d:%d:%d', tonumber(rule.count) or -1, tonumber(rule.age) or -1, tonumber(rule.limit) or 1000)
end
