-- Part of add: of jobs with one deduplication id, one at a time.
local function take_over(key, id, rule, keeping_ttl)
  local ttl = tonumber(rule.ttl) or 0
  if rule.keepLastIfActive or ttl <= 0 then
    redis.call('SET', key, id)
  elseif keeping_ttl then
    redis.call('SET', key, id, 'KEEPTTL')
  else
    redis.call('SET', key, id, 'PX', ttl)
  end
end

local function tell_twin(base, id, rule, twin)
  say(base, 'deduplicated', 'jobId', id, 'deduplicationId', rule.id, 'deduplicatedJobId', twin)
end

-- While the other one is active, the newest of those that come waits for its end.
local function keep_for_later(base, id, holder, job, rule)
  if not (rule.keepLastIfActive and redis.call('LPOS', base .. 'active', holder)) then return false end
  local following = base .. 'dn:' .. rule.id
  redis.call('DEL', following)
  redis.call('HSET', following, 'name', job.name, 'data', job.data, 'opts', job.opts, 'jid', id)
  if job.parent_key then
    redis.call('HSET', following, 'pk', job.parent_key, 'pd', job.parent, 'pdk', job.parent_key .. ':dependencies')
  end
  redis.call('PERSIST', base .. 'de:' .. rule.id)
  return true
end

-- Returns the id of the job that stands for this one, or nil: it is the one.
local function stands_for(base, id, job, rule)
  local key = base .. 'de:' .. rule.id
  local holder = redis.call('GET', key)
  if holder and redis.call('PTTL', key) == -1 and redis.call('EXISTS', base .. holder) == 0 then holder = false end
  if not holder then
    take_over(key, id, rule)
    return nil
  end
  if rule.replace and not job.children and redis.call('ZREM', base .. 'delayed', holder) == 1 then
    remove_keys(base .. holder)
    redis.call('DEL', base .. 'dn:' .. rule.id)
    say(base, 'removed', 'jobId', holder, 'prev', 'delayed')
    tell_twin(base, id, rule, holder)
    take_over(key, id, rule, not rule.extend)
    return nil
  end
  if keep_for_later(base, id, holder, job, rule) then
    tell_twin(base, holder, rule, id)
  elseif not rule.replace then
    if rule.extend and (tonumber(rule.ttl) or 0) > 0 then take_over(key, holder, rule) end
    tell_twin(base, holder, rule, id)
  end
  if rule.reschedule and not rule.replace and not job.children and redis.call('ZSCORE', base .. 'delayed', holder) then
    local delay = tonumber(job.delay) or 0
    redis.call('HSET', base .. holder, 'delay', delay)
    put_later(base, holder, job.timestamp + delay)
  end
  return holder
end
