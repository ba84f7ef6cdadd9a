-- Forget failed jobs, each if it is still among them.
-- KEYS[1] hash: meta of the queue; the names of its other keys, and of parents in other queues, share their beginning
-- ARGV[1] compat: auto, 5 or 6
-- ARGV[2..] ids
-- Returns how many there were
local base, compat = string.sub(KEYS[1], 1, -5), ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- include: queue
-- include: parents
-- include: forget

local count = 0
for i = 2, #ARGV do
  if redis.call('ZREM', base .. 'failed', ARGV[i]) == 1 then
    forget(base, ARGV[i])
    say(base, 'removed', 'jobId', ARGV[i], 'prev', 'failed')
    count = count + 1
  end
end
tell()
return count
