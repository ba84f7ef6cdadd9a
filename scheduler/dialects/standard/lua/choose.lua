-- Part of finish: enqueue due retries, then take jobs, higher levels first or every level its share.
-- Shares follow 31 places, of which levels have 16, 8, 4, 2 and 1: a place that can be halved n times is of level n.
-- Places of an empty level are skipped.
local MAX_BYTES, CHUNK, PLACES, WEIGHTS = 16 * 1024 * 1024, 100, 31, {[0] = 16, 8, 4, 2, 1}

local function has_room(most) return #taken / 3 < wanted and bytes < (most or MAX_BYTES) and moved < MOVES end

local function promote()
  if not next_due or tonumber(next_due) > now then return end
  local due, ids, names, entries, states = {}, {}, {}, {}, {}
  due = redis.call('ZRANGEBYSCORE', retrying, '-inf', now, 'LIMIT', 0, wanted)
  redis.call('ZREM', retrying, unpack(due))
  for i, entry in ipairs(due) do ids[i] = id_of(entry) or '' end
  for i, at in ipairs(redis.call('HMGET', state, unpack(ids))) do
    local counted, level = string.match(at or '', '^1:retrying:(%d+:%d+:%d+:%d):(%d):')
    local number = newer_format(due[i]) or newer_format(at or '')
    if number then
      block({due[i], 2 * SPAN, false, 'format:' .. number})
    elseif not counted then
      bury(due[i], 'the state of a job that waited for a retry is unreadable')
    else
      names[#names + 1] = level .. ':' .. (string.match(due[i], '^1\31[^\31]*\31[^\31]*\31([^\31]*)') or '')
      entries[#entries + 1] = due[i]
      states[#states + 1] = ids[i]
      states[#states + 1] = '1:waiting:' .. counted
    end
  end
  if #states > 0 then redis.call('HSET', state, unpack(states)) end
  enqueue(names, entries)
  next_due = redis.call('ZRANGE', retrying, 0, 0, 'WITHSCORES')[2]
end

-- Lease jobs that the worker can take, and park the others. found: entries and scores
local function admit(found)
  local entries, scores, aside, number = {}, {}, {}, 0
  for i = 1, #found, 2 do
    local entry, score = found[i], found[i + 1]
    local id = not every and id_of(entry)
    local kind = id and kind_of(entry, id)
    if kind and not can_take(kind) then
      local place = #aside
      aside[place + 1] = entry
      aside[place + 2] = score
      aside[place + 3] = id
      aside[place + 4] = 'type:' .. kind
    else
      number = number + 1
      entries[number], scores[number] = entry, score
      if free[kind] then free[kind] = free[kind] - 1 end
    end
  end
  if #entries > 0 then lease_all(entries, scores) end
  if #aside > 0 then block(aside) end
end

-- Returns whether the level had as many jobs as there was room. most: bytes of records
local function take_level(level, room, most)
  local before = #taken
  local function left() return room - (#taken - before) / 3 end
  while #candidates > 0 and left() > 0 and has_room(most) and take_parked(level, left()) > 0 do end
  while left() > 0 and has_room(most) do
    local low, high = level * SPAN, string.format('(%.0f', (level + 1) * SPAN)
    local chunk = math.min(CHUNK, left(), MOVES - moved)
    local found = redis.call('ZRANGEBYSCORE', waiting, low, high, 'WITHSCORES', 'LIMIT', 0, chunk)
    if #found == 0 then return false end
    local entries = {}
    for i = 1, #found, 2 do entries[#entries + 1] = found[i] end
    redis.call('ZREM', waiting, unpack(entries))
    admit(found)
  end
  return left() <= 0
end

local function level_of(number)
  local level = 0
  while number % 2 == 0 do number, level = number / 2, level + 1 end
  return level
end

-- Divide a number of jobs among levels.
local function divide(room, levels)
  local shares, weight = {}, 0
  for level in pairs(levels) do weight = weight + WEIGHTS[level] end
  local rounds = math.floor(room / weight)
  for level in pairs(levels) do shares[level] = rounds * WEIGHTS[level] end
  local left = room - rounds * weight
  while left > 0 do
    place = place % PLACES + 1
    local level = level_of(place)
    if levels[level] then shares[level], left = shares[level] + 1, left - 1 end
  end
  return shares
end
