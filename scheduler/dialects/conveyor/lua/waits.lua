-- Say how many wait in a queue, and what is first in each list.
-- KEYS[1] zset: scheduled; the names of all other keys begin as this does
-- ARGV[1] names: seed or upstream
-- ARGV[2] queue
-- Returns how many wait, then for each level the hash of its first, or nothing
-- include: names
local found = {0}
for level = 0, #LEVELS - 1 do
  local list = list_of(ARGV[2], level)
  local first = redis.call('LRANGE', list, -1, -1)[1]
  found[1] = found[1] + redis.call('LLEN', list)
  found[level + 2] = first and redis.sha1hex(first) or ''
end
return found
