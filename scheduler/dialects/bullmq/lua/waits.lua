-- Say how many wait in a queue, and what is first of each priority.
-- KEYS[1] hash: meta of the queue; the names of all other keys begin as this does
-- Returns how many wait, then for each priority the id of its first, or nothing
local base, PRIORITY = string.sub(KEYS[1], 1, -5), 4294967296
local found = {redis.call('LLEN', base .. 'wait') + redis.call('LLEN', base .. 'paused')
  + redis.call('ZCARD', base .. 'prioritized'), redis.call('LRANGE', base .. 'wait', -1, -1)[1] or ''}
for priority = 1, 4 do
  local last = priority == 4 and '+inf' or '(' .. string.format('%.0f', (priority + 1) * PRIORITY)
  local from = string.format('%.0f', priority * PRIORITY)
  found[priority + 2] = redis.call('ZRANGEBYSCORE', base .. 'prioritized', from, last, 'LIMIT', 0, 1)[1] or ''
end
return found
