-- Part of finish: end jobs.
local over, tombs, ends, fed, unlocked, kept = {}, {}, {}, {}, {}, {}
local backs, returned = {}, {} -- jobs that are put back; their ids
local concluded = false

-- Beyond what is to be kept, the oldest go; what a ledger has not settled stays.
local function trim(target, count, age, most)
  local old, set = {}, base .. target
  if age >= 0 then old = redis.call('ZRANGEBYSCORE', set, '-inf', now - age * 1000, 'LIMIT', 0, most) end
  local more = count > 0 and redis.call('ZCARD', set) - count or 0
  if more > 0 then
    for _, id in ipairs(redis.call('ZRANGE', set, 0, math.min(more, most) - 1)) do old[#old + 1] = id end
  end
  for _, id in ipairs(old) do
    local key = base .. id
    local job = redis.call('HMGET', key, 'installation', 'parentKey', 'parent')
    if not job[1] then
      remove_keys(key)
      redis.call('ZREM', set, id)
      if job[2] then child_removed(key, job[2], job[3]) end
    end
  end
end

-- Every failed attempt leaves a trace; of many the last are kept.
local function add_trace(key, trace, limit)
  local read, traces = pcall(cjson.decode, redis.call('HGET', key, 'stacktrace') or '[]')
  if not read or type(traces) ~= 'table' then traces = {} end
  traces[#traces + 1] = trace
  while limit >= 0 and #traces > limit do table.remove(traces, 1) end
  redis.call('HSET', key, 'stacktrace', #traces > 0 and cjson.encode(traces) or '[]')
end

local function conclude(id, job, target, value, trace, attempts, limit, keep)
  local key, made = base .. id, (tonumber(job.atm) or 0) + 1
  local field = target == 'completed' and 'returnvalue' or 'failedReason'
  if job.deid then release(base, id, job.deid) end
  if job.parentKey then
    local parent_ended = target == 'completed' and child_completed or child_failed
    parent_ended(key, job.parentKey, job.parent, value)
  end
  local count, age, most = string.match(keep, '^(-?%d+):(-?%d+):(%d+)$')
  if count == '0' then
    remove_keys(key)
    if job.parentKey then child_removed(key, job.parentKey, job.parent) end
  else
    redis.call('HSET', key, 'atm', made, field, value, 'finishedOn', now)
    if target == 'failed' then
      add_trace(key, trace, limit)
      redis.call('HDEL', key, 'defa')
    end
    over[target] = over[target] or {}
    table.insert(over[target], now)
    table.insert(over[target], id)
    if count ~= '-1' or age ~= '-1' then
      kept[target .. keep] = {target, tonumber(count), tonumber(age), tonumber(most)}
    end
  end
  concluded = true
  say(base, target, 'jobId', id, field, value, 'prev', 'active')
  if target == 'failed' and made >= attempts then
    say(base, 'retries-exhausted', 'jobId', id, 'attemptsMade', made)
  end
end

local function try_again(id, job, delay, reason, trace, limit, first, stalled)
  local key, counter = base .. id, stalled and 'stc' or 'atm'
  redis.call('HSET', key, counter, (tonumber(job[counter]) or 0) + 1)
  if not stalled then
    redis.call('HSET', key, 'failedReason', reason)
    add_trace(key, trace, limit)
  end
  if delay > 0 then
    redis.call('HSET', key, 'delay', delay)
    put_later(base, id, now + delay)
  else
    put(base, id, tonumber(job.priority) or 0, first)
    say(base, 'waiting', 'jobId', id, 'prev', 'active')
  end
  if stalled then say(base, 'stalled', 'jobId', id) end
end

-- Put-backs come after the fetch, which does not lease them. The first of them is the next to be leased.
local function put_back()
  for i = #backs, 1, -1 do
    local id, priority, score, stalled = unpack(backs[i], 1, 4)
    if priority > 0 then
      redis.call('ZADD', base .. 'prioritized', score or priority * PRIORITY, id)
    else
      redis.call('RPUSH', facts(base).list, id)
    end
    say(base, 'waiting', 'jobId', id, 'prev', 'active')
    if stalled then say(base, 'stalled', 'jobId', id) end
    ready[base] = true
  end
end

local function write()
  for target, scored in pairs(over) do redis.call('ZADD', base .. target, unpack(scored)) end
  for _, rule in pairs(kept) do trim(unpack(rule)) end
  if #unlocked > 0 then redis.call('SREM', base .. 'stalled', unpack(unlocked)) end
  for ledger, told in pairs(fed) do redis.call('HSET', base .. 'ring:' .. ledger .. ':fed', unpack(told)) end
  for ledger, batch in pairs(ends) do
    local stream = base .. 'ring:' .. ledger .. ':outcomes'
    local entry = redis.call('XADD', stream, '*', 'ends', '[' .. table.concat(batch, ',') .. ']')
    local marks = tombs[ledger] or {}
    for i = 2, #marks, 2 do marks[i] = marks[i] .. ':' .. entry end
    if #marks > 0 then redis.call('HSET', base .. 'ring:finished', unpack(marks)) end
  end
  over, tombs, ends, fed, unlocked, kept = {}, {}, {}, {}, {}, {}
end
