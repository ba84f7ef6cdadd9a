-- Part of finish: lease parked jobs of a level, lowest score first, and return how many were taken out.
local FEW = 10 -- of each type, at least
local function take_parked(level, room)
  local found, entries, members, numbers = {}, {}, {}, {}
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
    members[i] = member
    entries[2 * i - 1] = string.sub(member, #kind + 23) -- behind type:, 0x00 and the score
    entries[2 * i] = string.format('%.0f', score)
    numbers[kind] = (numbers[kind] or 0) + 1
    if free[kind] then free[kind] = free[kind] - 1 end
  end
  if #members == 0 then return 0 end
  redis.call('ZREM', blocked, unpack(members))
  for kind, number in pairs(numbers) do
    if discount('type:' .. kind, number) > 0 then signals[#signals + 1] = kind end
  end
  admit(entries, true)
  return #members
end
