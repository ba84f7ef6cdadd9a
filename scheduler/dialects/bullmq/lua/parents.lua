-- Part of some: what the end of a child means for its parent, which may be in another queue.
local function wait_no_more(base, id)
  local key = base .. id
  local read = redis.call('HMGET', key, 'priority', 'delay')
  local priority, delay = tonumber(read[1]) or 0, tonumber(read[2]) or 0
  if delay > 0 then
    put_later(base, id, now + delay)
  else
    put(base, id, priority, true)
    say(base, 'waiting', 'jobId', id, 'prev', 'waiting-children')
  end
end

local function go_on(base, id, whatever_is_open)
  if not whatever_is_open and redis.call('EXISTS', base .. id .. ':dependencies') == 1 then return end
  if redis.call('EXISTS', base .. id) == 1 and redis.call('ZREM', base .. 'waiting-children', id) == 1 then
    wait_no_more(base, id)
  end
end

local function fail_parent(base, id, child)
  local key = base .. id
  if redis.call('EXISTS', key) == 0 then return end
  local waits = redis.call('ZREM', base .. 'waiting-children', id) == 1
  if not waits and redis.call('ZREM', base .. 'delayed', id) == 1 then
    redis.call('HSET', key, 'delay', 0)
    waits = true
  end
  if waits or not redis.call('ZSCORE', base .. 'failed', id) then
    redis.call('HSET', key, 'defa', 'child ' .. child .. ' failed')
  end
  if waits then wait_no_more(base, id) end
end

-- Whatever somebody wrote there: an error here would lose the jobs that end in the same call.
local function parent_of(parent_key, parent)
  local read, known = pcall(cjson.decode, parent)
  if not read or type(known) ~= 'table' then known = {} end
  if type(known.queueKey) == 'string' and parent_key == known.queueKey .. ':' .. tostring(known.id) then
    return known.queueKey .. ':', tostring(known.id), known
  end
  local base, id = string.match(parent_key, '^(.*:)([^:]*)$')
  return base or '', id or parent_key, known
end

local function child_completed(child, parent_key, parent, value)
  local base, id = parent_of(parent_key, parent)
  if redis.call('SREM', base .. id .. ':dependencies', child) == 1 then
    redis.call('HSET', base .. id .. ':processed', child, value)
    go_on(base, id)
  end
end

local function child_failed(child, parent_key, parent, reason)
  local base, id, policy = parent_of(parent_key, parent)
  local key = base .. id
  if not (policy.fpof or policy.cpof or policy.idof or policy.rdof) then return end
  if redis.call('SREM', key .. ':dependencies', child) == 0 then return end
  if policy.fpof then
    redis.call('ZADD', key .. ':unsuccessful', now, child)
    fail_parent(base, id, child)
  else
    if policy.cpof or policy.idof then redis.call('HSET', key .. ':failed', child, reason) end
    go_on(base, id, policy.cpof)
  end
end

-- A child that is removed is waited for no more.
local function child_removed(child, parent_key, parent)
  if redis.call('SREM', parent_key .. ':dependencies', child) == 0 then return end
  local base, id = parent_of(parent_key, parent)
  if redis.call('EXISTS', parent_key .. ':dependencies') == 1 then return end
  if redis.call('ZREM', base .. 'waiting-children', id) == 1 then
    put(base, id, 0, true)
    say(base, 'waiting', 'jobId', id, 'prev', 'waiting-children')
  end
end
