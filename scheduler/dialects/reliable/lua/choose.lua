-- Part of finish: move due retries into their lists, then take jobs, the higher level first or every level its share.
-- Shares go by 31 places in turn, 16 critical's, 8 high's, 4 normal's, 2 low's, 1 bulk's: as often as the number
-- of a place can be halved, so many levels below critical it is. Places of an empty level are passed over.
local MOST_BYTES, CHUNK = 16 * 1024 * 1024, 100
local PLACES, WEIGHTS = 31, {16, 8, 4, 2, 1}

local function promote()
  if not next_retry or tonumber(next_retry) > now then return end
  local due = redis.call('ZRANGEBYSCORE', retries, '-inf', now, 'LIMIT', 0, wanted)
  for _, member in ipairs(due) do
    redis.call('LPUSH', KEYS[tonumber(string.sub(member, 1, 1))], string.sub(member, 2))
  end
  redis.call('ZREM', retries, unpack(due))
  next_retry = redis.call('ZRANGE', retries, 0, 0, 'WITHSCORES')[2]
end

local function higher_first(taken)
  for level = 1, 5 do
    while #taken / 4 < wanted and bytes < MOST_BYTES and passed <= MOST_PASSED do
      -- The more jobs were passed over, the more are read at once: a worker may have one slot free.
      local found = redis.call('RPOP', KEYS[level], math.min(CHUNK, math.max(wanted - #taken / 4, passed)))
      if not found or #found == 0 then break end
      hold(found, taken, KEYS[level])
    end
  end
end

local function level_of(number)
  local level = 1
  while number % 2 == 0 do number, level = number / 2, level + 1 end
  return level
end

-- Divide a room over the levels that have something.
local function divide(room, some)
  local shares, weight = {}, 0
  for level in pairs(some) do weight = weight + WEIGHTS[level] end
  local rounds = math.floor(room / weight)
  for level in pairs(some) do shares[level] = rounds * WEIGHTS[level] end
  local left = room - rounds * weight
  while left > 0 do
    place = place % PLACES + 1
    local level = level_of(place)
    if some[level] then shares[level], left = shares[level] + 1, left - 1 end
  end
  return shares
end

-- So few at once that jobs of every level are among them before there are too many bytes.
local function by_shares(taken)
  local some = {}
  for level = 1, 5 do some[level] = redis.call('EXISTS', KEYS[level]) == 1 or nil end
  while next(some) and #taken / 4 < wanted and bytes < MOST_BYTES and passed <= MOST_PASSED do
    local shares, found = divide(math.min(3 * PLACES, wanted - #taken / 4), some), {}
    for level = 1, 5 do
      local share = shares[level] or 0
      local popped = share > 0 and redis.call('RPOP', KEYS[level], share) or {}
      if free then
        hold(popped, taken, KEYS[level])
      else
        for _, entry in ipairs(popped) do found[#found + 1] = entry end
      end
      if #popped < share then some[level] = nil end
    end
    if #found > 0 then hold(found, taken) end
  end
end

local function take()
  local taken = {}
  promote()
  if place then by_shares(taken) else higher_first(taken) end
  if free then restore() end
  restless = restless or #taken > 0
  return taken
end
