-- Part of some: write a job, and put it where it waits.
local function store(base, id, job)
  local key = base .. id
  local delay, priority = tonumber(job.delay) or 0, tonumber(job.priority) or 0
  local fields = {
    'name', job.name, 'data', job.data, 'opts', job.opts, 'timestamp', job.timestamp, 'delay', delay,
    'priority', priority,
  }
  local dedup = job.dedup and job.dedup.id
  for field, value in pairs({parentKey = job.parent_key, parent = job.parent, rjk = job.rjk, deid = dedup}) do
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
  redis.call('HSET', key, unpack(fields))
  say(base, 'added', 'jobId', id, 'name', job.name)
  if job.children then
    redis.call('ZADD', base .. 'waiting-children', job.timestamp, id)
    say(base, 'waiting-children', 'jobId', id)
  elseif delay > 0 then
    put_later(base, id, job.timestamp + delay)
  else
    put(base, id, priority, job.lifo)
    say(base, 'waiting', 'jobId', id)
  end
  if job.parent_key then redis.call('SADD', job.parent_key .. ':dependencies', key) end
end

-- A job that ended, and that only one at a time may be of, makes way: at once for one that came meanwhile.
local function release(base, id, dedup)
  local key, following = base .. 'de:' .. dedup, base .. 'dn:' .. dedup
  if redis.call('PTTL', key) == -1 and redis.call('GET', key) == id then redis.call('DEL', key) end
  local read = redis.call('HMGET', following, 'name', 'data', 'opts', 'pk', 'pd', 'rjk', 'jid')
  if not read[1] then return end
  local count, options = redis.call('INCR', base .. 'id'), cjson.decode(read[3])
  local new, rule = read[7] or tostring(count), options.de or {}
  local ttl = not rule.keepLastIfActive and tonumber(rule.ttl) or 0
  redis.call('SET', key, new)
  if ttl > 0 then redis.call('PEXPIRE', key, ttl) end
  options.name, options.data, options.opts, options.timestamp = read[1], read[2], read[3], now
  options.parent_key, options.parent, options.rjk = read[4] or nil, read[5] or nil, read[6] or nil
  options.dedup = {id = dedup}
  store(base, new, options)
  redis.call('DEL', following)
end
