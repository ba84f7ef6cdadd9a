-- Part of some: read a job, and what a worker is told of it.
-- A token says whose attempt it is: worker:feed:attempt:starts:when it began in ms:the place it had among
-- priorities:sequence number of the lease.
-- Jobs that a ledger fed have fields of ours: `attempt`, how many attempts were settled or put back; `uncharged`, how
-- many of them are not charged; `redelivered`, set if one of these was an orphaned lease; `lease`, starts:sequence
-- number of our last lease; `previous`, starts:id of the last attempt that had begun, or starts:worker:sequence. The
-- last two are of the last start only if `starts` is `ats`, which BullMQ's workers count too.
local TOLD = 15
local FIELDS = {
  'name', 'data', 'opts', 'timestamp', 'priority', 'tenant', 'feed', 'installation', 'attempt', 'ring', 'note', 'rjk',
  'uncharged', 'stc', 'redelivered', 'atm', 'ats', 'attemptsMade', 'defa', 'parentKey', 'parent', 'deid', 'pb',
  'processedOn', 'previous', 'lease',
}

-- Without what is only told: data may be large.
local BRIEF = {
  'name', 'priority', 'tenant', 'feed', 'installation', 'attempt', 'rjk', 'atm', 'ats', 'stc', 'parentKey', 'parent',
  'deid', 'pb', 'processedOn', 'uncharged', 'previous', 'lease',
}

-- What is no job is read as one without a name: an id that means another key must not stop the others.
local function read_job(key, fields)
  local values, job = redis.pcall('HMGET', key, unpack(fields)), {}
  for i, field in ipairs(fields) do job[field] = values[i] end
  job.values = values
  return job
end

-- Others can write these fields: what is no count is 0.
local function count_of(text)
  local count = tonumber(string.match(text or '', '^%d+$')) or 0
  return count < 1000000000 and count or 0
end

-- How many attempts of it have ended: for a ledger, one whose worker was lost or put it back is one of them.
local function attempts_of(job)
  return count_of(job.atm) + (job.feed and count_of(job.stc) + count_of(job.uncharged) or 0)
end

-- Returns the number that tells the last lease from others of its worker: our sequence number, or the time in ms at
-- which a worker of BullMQ began.
local function sequence_of(job)
  local starts, sequence = string.match(job.lease or '', '^(%d+):(%d+)$')
  return starts == job.ats and sequence or string.match(job.processedOn or '', '^%d+') or 0
end

-- Returns the attempt before the one with number `starts` + 1, as far as it was written: its id, or worker:sequence.
local function previous_of(job, starts)
  local last, previous = string.match(job.previous or '', '^(%d+):(.*)$')
  return tonumber(last) == starts and previous or ''
end

local function tell_job(told, id, token, job, previous)
  told[#told + 1] = id
  told[#told + 1] = token
  for i = 1, TOLD do told[#told + 1] = job.values[i] or '' end
  told[#told + 1] = previous or previous_of(job, (tonumber(job.ats) or 0) - 1)
end

local function at_once(limit)
  local most = tonumber(limit) or 0
  return most > 0 and most or 1000
end

-- What the options of a job say of its failure: attempts, traces that are kept, and what is kept of it as
-- count:age in seconds:most at once.
local function rules_of(opts)
  local read, options = pcall(cjson.decode, opts or '{}')
  if not read or type(options) ~= 'table' then options = {} end
  local rule, keep = options.removeOnFail, '-1:-1:1000'
  if rule == true then
    keep = '0:-1:1000'
  elseif type(rule) == 'number' then
    keep = string.format('%d:-1:1000', rule)
  elseif type(rule) == 'table' then
    keep = string.format('%d:%d:%d', tonumber(rule.count) or -1, tonumber(rule.age) or -1, at_once(rule.limit))
  end
  return tonumber(options.attempts) or 0, tonumber(options.stackTraceLimit) or -1, keep
end
