-- Remove a worker that ends, but keep its retry policy and its begun mark for an hour if it still has a job.
-- Also without a lock: that job will be reclaimed.
-- KEYS[1] hash: meta of the queue; the names of all other keys begin as this does
-- ARGV[1] worker
-- Returns nothing
local base, mine, CHUNK, HOUR = string.sub(KEYS[1], 1, -5), ARGV[1] .. ':', 500, 3600000

local function has_job()
  local active = redis.call('LRANGE', base .. 'active', 0, -1)
  for first = 1, #active, CHUNK do
    local locks = {}
    for i = first, math.min(first + CHUNK - 1, #active) do locks[#locks + 1] = base .. active[i] .. ':lock' end
    for i, token in ipairs(redis.call('MGET', unpack(locks))) do
      if token and string.sub(token, 1, #mine) == mine then return true end
      if not token and redis.pcall('HGET', base .. active[first + i - 1], 'pb') == ARGV[1] then return true end
    end
  end
  return false
end

redis.call('DEL', base .. 'ring:said:' .. ARGV[1])
redis.call('ZREM', base .. 'ring:workers', ARGV[1])
local left = has_job() and HOUR or 0
for _, what in ipairs({'retry:', 'begun:'}) do redis.call('PEXPIRE', base .. 'ring:' .. what .. ARGV[1], left) end
