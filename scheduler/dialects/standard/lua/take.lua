-- Part of finish: take jobs in one of three ways.
local SWEEP = 32 -- leases after which tenants that the virtual time has passed are removed

-- Bytes are counted after each round, so that large jobs of one level leave room for the others.
local function by_shares()
  local levels = {}
  for level = 0, 4 do
    local high = string.format('(%.0f', (level + 1) * SPAN)
    levels[level] = #candidates > 0 or redis.call('ZCOUNT', waiting, level * SPAN, high) > 0 or nil
  end
  while next(levels) and has_room() do
    local shares = divide(math.min(3 * PLACES, wanted - #taken / 3), levels)
    for level = 0, 4 do
      local share = shares[level] or 0
      if share > 0 and not take_level(level, share, math.huge) then levels[level] = nil end
    end
  end
end

local function by_levels()
  for level = 0, 4 do
    if has_room() then take_level(level, wanted - #taken / 3) end
  end
end

-- No parked job competes: the order of the scores is that of the levels.
local function by_score()
  while has_room() do
    local found = redis.call('ZPOPMIN', waiting, math.min(CHUNK, wanted - #taken / 3, MOVES - moved))
    if #found == 0 then return end
    admit(found)
  end
end

local function take()
  promote()
  candidates = parked_types()
  if place then
    by_shares()
  elseif #candidates > 0 then
    by_levels()
  else
    by_score()
  end
  for level, score in pairs(top) do
    redis.call('ZADD', turns, 'GT', score, level)
    if math.floor(sequence / SWEEP) > math.floor((ARGV[8] - 1) / SWEEP) then
      redis.call('ZREMRANGEBYSCORE', turns, level * SPAN, string.format('(%.0f', score))
    end
  end
  restless = restless or #taken > 0
end
