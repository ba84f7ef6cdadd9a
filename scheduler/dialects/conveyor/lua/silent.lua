-- Name workers that are silent, close parents that somebody left half closed, forget leases that others took over.
-- KEYS[1] zset: scheduled; the names of all other keys begin as this does
-- ARGV[1] names: seed or upstream
-- ARGV[2] queue
-- ARGV[3] most names of each
-- ARGV[4] how long a parent that could be closed is left to others, in ms
-- ARGV[5] all, or ours: without workers of others
-- Returns the names of ours of the queue and of others; others are silent when they were not heard for 30 s
-- include: names
local ring, stuck, time = ring_of(ARGV[2]), base .. 'ring:stuck', redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local SOME, HOUR = 20, 3600000
-- include: wire
-- include: adding
-- include: holding
-- include: close

-- A worker of others closes a job step by step, and may die on the way; what it tries again it gives to a parent whose
-- run is over, as if that would still begin it. Nor is it sooner done with taking a job from one of ours: what has a
-- lease has not run to its end.
local function look_at(uuid)
  local key = bodies .. uuid
  local body = try('GET', key)
  local job = body and read(body)
  if not job then return forget(uuid) end
  local open = redis.call('EXISTS', key .. ':children') == 1 or waits_for(key) == 0
  if not open or runs(uuid) then return redis.call('ZREM', stuck, uuid) end
  local since = redis.call('ZSCORE', stuck, uuid)
  if not since then return redis.call('ZADD', stuck, now, uuid) end
  if now - since < tonumber(ARGV[4]) then return end
  redis.call('ZREM', stuck, uuid)
  if redis.call('HEXISTS', ring_of(job.queue) .. 'attempts', uuid) == 0 then return close(job) end
  forget(uuid)
  return push(job) or fail(job, body)
end

-- Whoever took it over says nothing of its end; until it runs again with us, its lease says how often it did.
local function let_go(uuid, lease)
  local owner, began = string.match(lease, '^%d+:%d+:(.*):(%d+):%d+$')
  -- a value that is no lease is forgotten at once: nobody can renew it, nor end it
  if owner and (now - began < HOUR or redis.call('SISMEMBER', held_by(owner), uuid) == 1) then return end
  for _, name in ipairs({'attempts', 'jobs', 'cancels', 'notes', 'returned'}) do
    redis.call('HDEL', ring .. name, uuid)
  end
end

for _, uuid in ipairs(redis.call('SRANDMEMBER', active, SOME)) do look_at(uuid) end
local leases = redis.call('HRANDFIELD', ring .. 'attempts', SOME, 'WITHVALUES')
for i = 1, #leases, 2 do let_go(leases[i], leases[i + 1]) end
redis.call('ZREMRANGEBYSCORE', stuck, '-inf', now - HOUR)
erase()
local names = redis.call('ZRANGEBYSCORE', ring .. 'workers', '-inf', '(' .. now, 'LIMIT', 0, ARGV[3])
if ARGV[5] == 'ours' then return names end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', workers, '-inf', time[1] - 30, 'LIMIT', 0, ARGV[3])) do
  if not redis.call('ZSCORE', ring .. 'workers', name) then names[#names + 1] = name end
end
return names
