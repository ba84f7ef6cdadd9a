-- Part of finish: take parked jobs of types for which the worker has a free slot.
local REASONS, FEW = 1000, 10
local candidates = {}

-- Returns the types that are parked and that the worker can take.
local function parked_types()
  local found, names = {}, {}
  is_blocked = rare and redis.call('EXISTS', counts) == 1
  if not is_blocked then return found end
  if not handled then
    local many = redis.call('HLEN', counts) > REASONS
    for _, reason in ipairs(many and redis.call('HRANDFIELD', counts, REASONS) or redis.call('HKEYS', counts)) do
      local kind = string.sub(reason, 1, 5) == 'type:' and string.sub(reason, 6)
      if kind and can_take(kind) then found[#found + 1] = kind end
    end
    return found
  end
  for kind in pairs(handled) do if can_take(kind) then names[#names + 1] = 'type:' .. kind end end
  for first = 1, #names, REASONS do
    local last = math.min(first + REASONS - 1, #names)
    for i, number in ipairs(redis.call('HMGET', counts, unpack(names, first, last))) do
      if tonumber(number or 0) > 0 then found[#found + 1] = string.sub(names[first + i - 1], 6) end
    end
  end
  return found
end

-- Lease parked jobs of a level, lowest score first. Returns how many were taken out.
local function take_parked(level, room)
  local found, entries, scores, members, numbers = {}, {}, {}, {}, {}
  local low, high = string.format('%016.0f', level * SPAN), string.format('%016.0f', (level + 1) * SPAN)
  local share = math.max(FEW, math.floor(REASONS / #candidates))
  for _, kind in ipairs(candidates) do
    local reason = 'type:' .. kind .. '\0'
    local most = math.min(room, share, free[kind] or room)
    local range = most > 0 and {'[' .. reason .. low, '(' .. reason .. high, 'LIMIT', 0, most}
    for _, member in ipairs(range and redis.call('ZRANGEBYLEX', blocked, unpack(range)) or {}) do
      found[#found + 1] = {string.sub(member, #reason + 1, #reason + 16), member, kind}
    end
  end
  table.sort(found, function(one, other) return one[1] < other[1] end)
  for i = 1, math.min(room, #found) do
    local score, member, kind = unpack(found[i])
    scores[i], members[i] = string.format('%.0f', score), member
    entries[i] = string.sub(member, #kind + 23) -- behind type:, 0x00 and the score
    numbers[kind] = (numbers[kind] or 0) + 1
    if free[kind] then free[kind] = free[kind] - 1 end
  end
  if #members == 0 then return 0 end
  redis.call('ZREM', blocked, unpack(members))
  for kind, number in pairs(numbers) do
    if discount('type:' .. kind, number) > 0 then signals[#signals + 1] = kind end
  end
  lease_all(entries, scores)
  return #members
end
