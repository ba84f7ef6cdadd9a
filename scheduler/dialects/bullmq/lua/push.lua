-- Put jobs of a ledger in, each id once until its end is settled.
-- KEYS[1] hash: meta of the queue; the names of all other keys begin as this does
-- ARGV[1] epoch that Redis must have; empty: any
-- ARGV[2] installation: whose epoch it is
-- ARGV[3] compat: auto, 5 or 6
-- ARGV[4] until when it may be, in ms; empty: whenever
-- ARGV[5..] 12 values for each job: id, priority, feed, attempts before, type, tenant, created in ms, options as JSON,
-- what else the ring knows as JSON, data as JSON, whose ledger it is in or empty, how many of the attempts are not
-- charged
-- Returns "lost", "late", or for each job n (new), k (known), f (finished) or r (its earlier result is missing, so it
-- is enqueued again)
local base, epoch, compat = string.sub(KEYS[1], 1, -5), ARGV[1], ARGV[3]
local FIRST, VALUES = 5, 12
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if epoch ~= '' and redis.call('GET', base .. 'ring:' .. ARGV[2] .. ':epoch') ~= epoch then return 'lost' end

-- include: queue
-- include: settling/late
local outcomes = base .. 'ring:' .. ARGV[2] .. ':outcomes'
-- include: settling/has_result

if late(ARGV[4]) then return 'late' end

local function write(id, priority, feed, attempt, name, tenant, created, opts, ring, data, installation, uncharged)
  local fields = {
    'name', name, 'data', data, 'opts', opts, 'timestamp', created, 'delay', 0, 'priority', priority, 'tenant', tenant,
    'feed', feed, 'attempt', attempt, 'atm', attempt - uncharged, 'ring', ring,
  }
  if uncharged ~= '0' then
    fields[#fields + 1] = 'uncharged'
    fields[#fields + 1] = uncharged
  end
  if installation ~= '' then
    redis.call('HSET', base .. 'ring:' .. installation .. ':fed', id, table.concat({feed, attempt, tenant}, ':'))
    fields[#fields + 1] = 'installation'
    fields[#fields + 1] = installation
  end
  redis.call('HSET', base .. id, unpack(fields))
end

-- Fed again although it is here: whoever has it loses its lock. One that waits, waits on where it is. What is known of
-- its attempts is what was pushed.
local function feed_again(id, priority, before, starts)
  local key, lists = base .. id, {base .. 'wait', base .. 'paused', base .. 'active'}
  redis.call('HSET', key, 'previous', (starts or 0) .. ':')
  redis.call('HDEL', key, 'stc', 'redelivered', 'defa', 'cancel', 'note', 'progress', 'failedReason', 'stacktrace')
  if redis.call('ZSCORE', base .. 'delayed', id) then return end
  local waits = redis.call('ZSCORE', base .. 'prioritized', id)
  for i = 1, 2 do waits = waits or redis.call('LPOS', lists[i], id) end
  if waits and before == priority then return end
  redis.call('ZREM', base .. 'prioritized', id)
  for _, list in ipairs(lists) do redis.call('LREM', list, 1, id) end
  redis.call('DEL', key .. ':lock')
  redis.call('SREM', base .. 'stalled', id)
  put(base, id, tonumber(priority))
  say(base, 'waiting', 'jobId', id, 'prev', 'active')
end

local function push(settled, id, priority, feed, ...)
  local key = base .. id
  local mark = redis.call('HGET', base .. 'ring:finished', id)
  if mark and has_result(mark) then return 'f' end
  local there = redis.call('HMGET', key, 'name', 'feed', 'priority', 'ats')
  if not there[1] then
    if settled and settled >= tonumber(feed) then return 'f' end
    if mark then redis.call('HDEL', base .. 'ring:finished', id) end
    write(id, priority, feed, ...)
    redis.call('HSET', key, 'ats', (...))
    say(base, 'added', 'jobId', id, 'name', (select(2, ...)))
    put(base, id, tonumber(priority))
    say(base, 'waiting', 'jobId', id)
    return mark and 'r' or 'n'
  end
  if redis.call('ZSCORE', base .. 'completed', id) or redis.call('ZSCORE', base .. 'failed', id) then return 'f' end
  if tonumber(there[2] or 0) < tonumber(feed) then
    redis.call('HDEL', key, 'uncharged')
    write(id, priority, feed, ...)
    feed_again(id, priority, there[3], there[4])
  end
  return 'k'
end

local ids, answer = {}, {}
for i = FIRST, #ARGV, VALUES do ids[#ids + 1] = ARGV[i] end
local settled = settled_lately(base .. 'ring:settled', base .. 'ring:settled:before', ids)
for i = 1, #ids do
  local first = FIRST + (i - 1) * VALUES
  answer[i] = push(settled[i], unpack(ARGV, first, first + VALUES - 1))
end
redis.call('INCRBY', base .. 'id', #answer)
tell()
return table.concat(answer)
