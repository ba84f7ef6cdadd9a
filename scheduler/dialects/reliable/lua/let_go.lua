-- Part of finish: take the entries of all results out of what the worker holds.
-- They are mostly the oldest, at its end, and these go together: to look for each by itself costs more than all the
-- rest of its end. That is done with those that lie behind too many others, or large ones.
local FEW, PAGE, DEEP, MOST, LARGE = 4, 100, 20, 4000, 4 * 1024 * 1024

-- Returns how many of each entry there were and are not there any more.
local function cut_off()
  local wanted, found, left, seen, rest, size = {}, {}, count, 0, {}, 0
  for i = 1, count do
    local entry = ARGV[5 * i + 10]
    wanted[entry] = (wanted[entry] or 0) + 1
  end
  repeat
    local page = redis.call('LRANGE', processing, -seen - PAGE, -seen - 1)
    for i = #page, 1, -1 do
      local entry = page[i]
      if (wanted[entry] or 0) > 0 then
        wanted[entry], found[entry], left = wanted[entry] - 1, (found[entry] or 0) + 1, left - 1
      else
        rest[#rest + 1], size = entry, size + #entry
      end
    end
    seen = seen + #page
  until left == 0 or #page < PAGE or #rest > math.min(DEEP * count, MOST) or size > LARGE
  if left == count then return found end
  redis.call('LTRIM', processing, 0, -seen - 1)
  for i = 1, #rest / 2 do rest[i], rest[#rest + 1 - i] = rest[#rest + 1 - i], rest[i] end
  if #rest > 0 then redis.call('RPUSH', processing, unpack(rest)) end
  return found
end

-- Returns for each result whether its entry was there.
local function let_go()
  local found, here = count < FEW and {} or cut_off(), {}
  for i = 1, count do
    local entry = ARGV[5 * i + 10]
    here[i] = (found[entry] or 0) > 0
    if here[i] then
      found[entry] = found[entry] - 1
    else
      here[i] = redis.call('LREM', processing, -1, entry) == 1
    end
  end
  return here
end
