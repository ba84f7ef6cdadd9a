-- Count what is in a queue.
-- KEYS[1] hash: meta of the queue; the names of all other keys begin as this does
-- Returns five priorities, delayed, active, unsettled ends, failed
local base, PRIORITY = string.sub(KEYS[1], 1, -5), 4294967296
local counts = {redis.call('LLEN', base .. 'wait') + redis.call('LLEN', base .. 'paused')}
for priority = 1, 4 do
  local last = priority == 4 and '+inf' or '(' .. string.format('%.0f', (priority + 1) * PRIORITY)
  counts[priority + 1] = redis.call('ZCOUNT', base .. 'prioritized', priority * PRIORITY, last)
end
counts[6] = redis.call('ZCARD', base .. 'delayed')
counts[7] = redis.call('LLEN', base .. 'active')
counts[8] = redis.call('HLEN', base .. 'ring:finished')
counts[9] = redis.call('ZCARD', base .. 'failed')
return counts
