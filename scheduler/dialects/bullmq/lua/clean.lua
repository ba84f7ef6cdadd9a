-- Take out jobs of one state that are older than some instant, the oldest first.
-- KEYS[1] hash: meta of the queue; the names of its other keys, and of parents in other queues, share their beginning
-- ARGV[1] compat: auto, 5 or 6
-- ARGV[2] the state: completed, failed, delayed, prioritized, wait, paused, or active without a lock
-- ARGV[3] the instant, in ms
-- ARGV[4] how many at most
-- Returns the ids of those that were taken out
local compat, state, before, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local base = string.sub(KEYS[1], 1, -5)
local key = base .. state
local LOOKED_AT = 10000 -- they may not be in the order of their age
local listed = state == 'wait' or state == 'paused' or state == 'active'

-- include: queue
-- include: parents
-- include: forget

local function old(id)
  if state == 'completed' or state == 'failed' then return true end
  if scheduled(base, id) or state == 'active' and redis.call('EXISTS', base .. id .. ':lock') == 1 then return false end
  local read = redis.call('HMGET', base .. id, 'processedOn', 'timestamp')
  return (tonumber(read[1] or read[2]) or 0) <= before
end

local ids
if listed then
  ids = redis.call('LRANGE', key, -LOOKED_AT, -1)
elseif state == 'completed' or state == 'failed' then
  ids = redis.call('ZRANGEBYSCORE', key, '-inf', before, 'LIMIT', 0, most)
else
  ids = redis.call('ZRANGE', key, 0, LOOKED_AT - 1)
end
local gone = {}
for i = 1, #ids do
  local id = ids[listed and #ids + 1 - i or i] -- the oldest of a list is its last
  if #gone < most and old(id) then
    redis.call(listed and 'LREM' or 'ZREM', key, unpack(listed and {-1, id} or {id}))
    forget(base, id)
    gone[#gone + 1] = id
  end
end
facts(base)
say(base, 'cleaned', 'count', #gone)
tell()
return gone
