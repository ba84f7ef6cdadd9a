-- Count parked jobs by type.
-- KEYS[1] hash: blocked:counts, reason -> number of entries
-- Returns the types, each followed by its number of jobs
local found, counts = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #counts, 2 do
  local number = tonumber(counts[i + 1]) or 0
  if string.sub(counts[i], 1, 5) == 'type:' and number > 0 then
    found[#found + 1] = string.sub(counts[i], 6)
    found[#found + 1] = number
  end
end
return found
