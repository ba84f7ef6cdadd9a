-- Part of finish: take jobs by levels, parked jobs first: higher levels first, or every level its share.
-- Shares follow 31 places, of which levels have 16, 8, 4, 2 and 1: a place that can be halved n times is of level n.
-- Places of an empty level are skipped.
local PLACES, WEIGHTS = 31, {[0] = 16, 8, 4, 2, 1}

-- Returns whether the level had as many jobs as there was room. most: bytes of records
local function take_level(level, room, most)
  local before = #taken
  local function left() return room - (#taken - before) / 3 end
  while #candidates > 0 and left() > 0 and has_room(most) and take_parked(level, left()) > 0 do end
  while left() > 0 and has_room(most) do
    local low, high = level * SPAN, string.format('(%.0f', (level + 1) * SPAN)
    local chunk = math.min(CHUNK, left(), MOVES - #aside / 4)
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

if not place then
  for level = 0, 4 do
    if has_room() then take_level(level, wanted - #taken / 3) end
  end
else
  local levels = {}
  for level = 0, 4 do
    local high = string.format('(%.0f', (level + 1) * SPAN)
    levels[level] = #candidates > 0 or redis.call('ZCOUNT', waiting, level * SPAN, high) > 0 or nil
  end
  -- Bytes are counted after each round, so that large jobs of one level leave room for the others.
  while next(levels) and has_room() do
    local shares = divide(math.min(3 * PLACES, wanted - #taken / 3), levels)
    for level = 0, 4 do
      local share = shares[level] or 0
      if share > 0 and not take_level(level, share, math.huge) then levels[level] = nil end
    end
  end
end
