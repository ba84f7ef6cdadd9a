-- Part of most: what a queue is like, what it says, and where its jobs wait.
-- Wants the locals `now` in ms and `compat`. A base is the beginning of a queue's keys: a parent may be in another.
local PRIORITY, SEQUENCE, MOST_EVENTS, VERSION = 4294967296, 4096, 10000, 'bullmq:6.7.0'
local queues, ready, later = {}, {}, {}

local function facts(base)
  if queues[base] then return queues[base] end
  local meta = base .. 'meta'
  local read = redis.call('HMGET', meta, 'paused', 'concurrency', 'max', 'duration', 'version', 'opts.maxLenEvents')
  if not read[5] then redis.call('HSET', meta, 'version', VERSION) end
  if not read[6] then redis.call('HSET', meta, 'opts.maxLenEvents', MOST_EVENTS) end
  local known = {paused = read[1], most = tonumber(read[2]), max = tonumber(read[3]), duration = tonumber(read[4])}
  known.events, known.list = read[6] or MOST_EVENTS, base .. 'wait'
  -- Version 5 renames its list when it resumes: what waits while it is paused must be in that list.
  local five = compat == '5' or compat == 'auto' and string.find(read[5] or '', 'bullmq:5', 1, true) == 1
  known.five = five or compat == 'auto' and redis.call('EXISTS', base .. 'paused') == 1
  if known.paused and known.five then known.list = base .. 'paused' end
  queues[base] = known
  return known
end

local function say(base, event, ...)
  redis.call('XADD', base .. 'events', '*', 'event', event, ...)
end

local function put(base, id, priority, first)
  if priority > 0 then
    local count = redis.call('INCR', base .. 'pc')
    redis.call('ZADD', base .. 'prioritized', priority * PRIORITY + count % PRIORITY, id)
  else
    redis.call(first and 'RPUSH' or 'LPUSH', facts(base).list, id)
  end
  ready[base] = true
end

local function put_later(base, id, due)
  local first = due * SEQUENCE
  local last = first + SEQUENCE - 1
  local same = redis.call('ZREVRANGEBYSCORE', base .. 'delayed', last, first, 'WITHSCORES', 'LIMIT', 0, 1)
  redis.call('ZADD', base .. 'delayed', same[2] and math.min(same[2] + 1, last) or first, id)
  say(base, 'delayed', 'jobId', id, 'delay', due)
  later[base] = true
end

local function blocked(base)
  local known = facts(base)
  return known.paused or known.most and redis.call('LLEN', base .. 'active') >= known.most
end

local function remove_keys(key)
  redis.call('UNLINK', key, key .. ':lock', key .. ':logs', key .. ':dependencies', key .. ':processed',
    key .. ':failed', key .. ':unsuccessful')
end

-- Last of all: wake those who wait for a job, and forget events of long ago.
local function tell()
  for base in pairs(ready) do
    if not blocked(base) then redis.call('ZADD', base .. 'marker', 0, '0') end
  end
  for base in pairs(later) do
    local first = redis.call('ZRANGE', base .. 'delayed', 0, 0, 'WITHSCORES')[2]
    if first then redis.call('ZADD', base .. 'marker', math.floor(first / SEQUENCE), '1') end
  end
  for base, known in pairs(queues) do redis.call('XTRIM', base .. 'events', 'MAXLEN', '~', known.events) end
end
