-- Part of scripts that enqueue jobs: give them start times by start-time fair queueing of the tenants of a level.
-- A job starts at the virtual time of its level, or at the start of its tenant's next job if that is later. A tenant
-- that starts at the virtual time advances it by 1, so that tenants are served in the order in which they came.
local SPAN, STEP = 2 ^ 50, 1000

-- names: level:tenant of each entry
local function enqueue(names, entries)
  if #names == 0 then return end
  local starts, tenants, scores, members = {}, {}, {}, {}
  for _, name in ipairs(names) do
    if not starts[name] then
      starts[name] = 0
      tenants[#tenants + 1] = name
    end
  end
  local clocks = redis.call('ZMSCORE', turns, '0', '1', '2', '3', '4')
  local following = redis.call('ZMSCORE', turns, unpack(tenants))
  for i, name in ipairs(tenants) do
    local level, start = string.byte(name) - 48, tonumber(following[i]) or 0
    local clock = tonumber(clocks[level + 1]) or level * SPAN
    if start <= clock then
      start = clock
      clocks[level + 1] = clock + 1
      scores[#scores + 1] = clock + 1
      scores[#scores + 1] = level
    end
    starts[name] = start
  end
  for i, name in ipairs(names) do
    local start = starts[name]
    members[2 * i - 1] = start
    members[2 * i] = entries[i]
    starts[name] = start + STEP -- a weight of the tenant will divide the step
  end
  for _, name in ipairs(tenants) do
    scores[#scores + 1] = starts[name]
    scores[#scores + 1] = name
  end
  redis.call('ZADD', waiting, unpack(members))
  redis.call('ZADD', turns, unpack(scores))
end
