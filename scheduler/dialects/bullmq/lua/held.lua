-- List what a worker holds.
-- KEYS[1] hash: meta of the queue; the names of all other keys begin as this does
-- ARGV[1] worker
-- Returns of each what `job` tells, the oldest first
local base, mine = string.sub(KEYS[1], 1, -5), ARGV[1] .. ':'
local CHUNK = 500

-- include: job

local told, ids, active = {}, {}, redis.call('LRANGE', base .. 'active', 0, -1)
for i = #active, 1, -1 do ids[#ids + 1] = active[i] end
for first = 1, #ids, CHUNK do
  local locks = {}
  for i = first, math.min(first + CHUNK - 1, #ids) do locks[#locks + 1] = base .. ids[i] .. ':lock' end
  for i, token in ipairs(redis.call('MGET', unpack(locks))) do
    if token and string.sub(token, 1, #mine) == mine then
      local id = ids[first + i - 1]
      tell_job(told, id, token, read_job(base .. id, FIELDS))
    end
  end
end
return told
