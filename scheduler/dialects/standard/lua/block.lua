-- Part of finish: which types the worker can take now, and moving other jobs to `blocked`.
-- A member of `blocked` is reason, 0x00, score and entry. A job with the reason type:<type> is parked: any worker with
-- a free slot for the type takes it.
local MOVES = 1000 -- at most, in one call
local handled, free, kinds, moved = nil, {}, {}, 0
local LIMITS = FIRST + 2 * count + (tonumber(ARGV[11]) or 0)
if ARGV[11] ~= '' then
  handled = {}
  for i = FIRST + 2 * count + 1, LIMITS do handled[ARGV[i]] = true end
end
for i = LIMITS + 1, LIMITS + 2 * tonumber(ARGV[12]), 2 do free[ARGV[i]] = tonumber(ARGV[i + 1]) end
local every = not handled and ARGV[12] == '0'

local function can_take(kind)
  return (not handled or handled[kind]) and (not free[kind] or free[kind] > 0)
end

-- Returns the id of an entry; nil: it has a newer format or is unreadable.
local function id_of(entry)
  local number, separator = string.byte(entry, 1, 2)
  if number ~= 49 or separator ~= 31 then return nil end
  local stop = string.find(entry, '\31', 3, true)
  return stop and stop > 3 and string.sub(entry, 3, stop - 1) or nil
end

-- Returns the type of an entry that has an id.
local function kind_of(entry, id)
  local rest = string.sub(entry, #id + 4)
  local kind = kinds[rest]
  if not kind then
    kind = string.match(rest, '^[^\31]*')
    kinds[rest] = kind
  end
  return kind
end

-- Block jobs. aside: entry, score, id or false, and reason of each
local function block(aside)
  local ids, members, states, numbers, seen = {}, {}, {}, {}, 0
  for i = 3, #aside, 4 do if aside[i] then ids[#ids + 1] = aside[i] end end
  local before = #ids > 0 and redis.call('HMGET', state, unpack(ids)) or {}
  for i = 1, #aside, 4 do
    local entry, score, id, reason = aside[i], string.format('%016.0f', aside[i + 1]), aside[i + 2], aside[i + 3]
    members[#members + 1] = 0
    members[#members + 1] = reason .. '\0' .. score .. entry
    numbers[reason] = (numbers[reason] or 0) + 1
    if id then
      seen = seen + 1
      local counted = string.match(before[seen] or '', '^1:%a+:(%d+:%d+:%d+:%d)') or '0:0:0:0'
      if not newer_format(before[seen] or '') then
        states[#states + 1] = id
        states[#states + 1] = '1:blocked:' .. counted .. ':' .. score .. ':' .. reason
      end
    end
  end
  redis.call('ZADD', blocked, unpack(members))
  if #states > 0 then redis.call('HSET', state, unpack(states)) end
  for reason, number in pairs(numbers) do
    redis.call('HINCRBY', counts, reason, number)
    if string.sub(reason, 1, 5) == 'type:' then signals[#signals + 1] = string.sub(reason, 6) end
  end
  moved, is_blocked, rare = moved + #members / 2, true, true
end
