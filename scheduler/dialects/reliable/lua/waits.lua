-- Say how many wait in a queue, and what is first in each list.
-- KEYS[1] list: level critical
-- KEYS[2] list: level high
-- KEYS[3] list: level normal
-- KEYS[4] list: level low
-- KEYS[5] list: level bulk
-- Returns how many wait, then for each level the hash of its first, or nothing
local found, levels = {0}, {}
for level = 1, 5 do
  if not levels[KEYS[level]] then -- the original has fewer
    found[1] = found[1] + redis.call('LLEN', KEYS[level])
  end
  levels[KEYS[level]] = true
  local first = redis.call('LRANGE', KEYS[level], -1, -1)[1]
  found[level + 1] = first and redis.sha1hex(first) or ''
end
return found
