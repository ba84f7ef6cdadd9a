-- One sorted set of waiting jobs: the score is the level and the virtual start time of the job,
-- given at the push. A job that this worker cannot take is moved to a sorted set of blocked jobs,
-- ordered by the reason and then by its score.
local SPAN, LOOK = 2 ^ 40, 1000
local waiting, turns, blocked, counts = P .. 'waiting', P .. 'turns', P .. 'blocked', P .. 'blocked:counts'

local function put()
  local next_at, names, members = {}, {}, {}
  for i = 1, #ARGV, 5 do
    local name = ARGV[i + 1] .. ':' .. ARGV[i + 2]
    if not next_at[name] then
      next_at[name] = true
      names[#names + 1] = name
    end
  end
  local now = redis.call('ZMSCORE', turns, '0', '1', '2', '3', '4')
  local last = redis.call('ZMSCORE', turns, unpack(names))
  for i, name in ipairs(names) do
    local level = tonumber(string.sub(name, 1, 1))
    next_at[name] = math.max(tonumber(last[i] or 0), tonumber(now[level + 1] or level * SPAN))
  end
  for i = 1, #ARGV, 5 do
    local name = ARGV[i + 1] .. ':' .. ARGV[i + 2]
    local at = next_at[name]
    members[#members + 1] = at
    members[#members + 1] = ARGV[i + 3]
    next_at[name] = at + 1
  end
  redis.call('ZADD', waiting, unpack(members))
  local scores = {}
  for _, name in ipairs(names) do
    scores[#scores + 1] = next_at[name]
    scores[#scores + 1] = name
  end
  redis.call('ZADD', turns, unpack(scores))
end

-- Whether this worker can take jobs of a type, tenant and limit, which end an entry.
local decided = {}
local function can_take(rest)
  local found = decided[rest]
  if found == nil then
    found = string.sub(rest, 1, #excluded) ~= excluded or excluded == ''
    decided[rest] = found
  end
  return found
end

local function block(entries)
  local members, many = {}, #entries / 2
  for i = 1, #entries, 2 do
    members[i] = 0
    members[i + 1] = string.format('type:%s\0%013.0f%s', excluded, entries[i + 1], entries[i])
  end
  redis.call('ZADD', blocked, unpack(members))
  redis.call('HINCRBY', counts, 'type:' .. excluded, many)
end

local function take(n)
  local taken, last, looked = {}, nil, 0
  repeat
    local found, aside = redis.call('ZPOPMIN', waiting, n - #taken), {}
    for i = 1, #found, 2 do
      local entry = found[i]
      if can_take(string.sub(entry, 40)) then
        taken[#taken + 1], last = entry, found[i + 1]
      else
        aside[#aside + 1] = entry
        aside[#aside + 1] = found[i + 1]
      end
    end
    looked = looked + #found / 2
    if #aside > 0 then block(aside) end
  until #aside == 0 or #taken == n or looked >= LOOK
  if last then
    local level = math.floor(tonumber(last) / SPAN)
    redis.call('ZADD', turns, 'GT', last, level)
    if redis.call('EXISTS', waiting) == 0 then
      redis.call('DEL', turns)
    else
      redis.call('ZREMRANGEBYSCORE', turns, level * SPAN, '(' .. last)
    end
  end
  return taken
end
