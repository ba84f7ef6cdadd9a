-- Part of finish: find the parked types that the worker can take.
if not handled then
  local many = redis.call('HLEN', counts) > REASONS
  for _, reason in ipairs(many and redis.call('HRANDFIELD', counts, REASONS) or redis.call('HKEYS', counts)) do
    local kind = string.sub(reason, 1, 5) == 'type:' and string.sub(reason, 6)
    if kind and can_take(kind) then candidates[#candidates + 1] = kind end
  end
else
  local names = {}
  for kind in pairs(handled) do if can_take(kind) then names[#names + 1] = 'type:' .. kind end end
  for first = 1, #names, REASONS do
    local last = math.min(first + REASONS - 1, #names)
    for i, number in ipairs(redis.call('HMGET', counts, unpack(names, first, last))) do
      if tonumber(number or 0) > 0 then candidates[#candidates + 1] = string.sub(names[first + i - 1], 6) end
    end
  end
end
