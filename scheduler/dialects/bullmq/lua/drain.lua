-- Take out jobs that wait.
-- KEYS[1] hash: meta of the queue; the names of its other keys, and of parents in other queues, share their beginning
-- ARGV[1] compat: auto, 5 or 6
-- ARGV[2] how many at most
-- ARGV[3..] where they wait: wait, paused, prioritized, delayed
-- Returns how many were taken out: none are left when there were none
local compat, most = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local base = string.sub(KEYS[1], 1, -5)

-- include: queue
-- include: parents
-- include: forget

local count = 0
for i = 3, #ARGV do
  local key = base .. ARGV[i]
  local listed = ARGV[i] == 'wait' or ARGV[i] == 'paused'
  -- What a scheduler has planned stays, or it would never plan again: at most one for each.
  local range = most - count + redis.call('ZCARD', base .. 'repeat')
  local ids = redis.call(listed and 'LRANGE' or 'ZRANGE', key, 0, range - 1)
  for _, id in ipairs(ids) do
    if count < most and not scheduled(base, id) then
      redis.call(listed and 'LREM' or 'ZREM', key, unpack(listed and {1, id} or {id}))
      forget(base, id)
      count = count + 1
    end
  end
end
tell()
return count
