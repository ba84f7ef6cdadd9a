-- End deliveries of a worker, each if it is still the worker's, and take the next jobs.
-- KEYS[1] zset: scheduled; the names of all other keys begin as this does
-- ARGV[1] names: seed or upstream
-- ARGV[2] queue
-- ARGV[3] worker
-- ARGV[4] lease, in ms
-- ARGV[5] how many to take
-- ARGV[6] live, or dead: another takes back what a silent worker holds
-- ARGV[7] most unsettled ends
-- ARGV[8] most jobs kept in failed
-- ARGV[9] sequence number of the first lease; the next leases get the next numbers
-- ARGV[10] JSON object of types and how many jobs of each may be leased; empty: any number of any type
-- ARGV[11] mark of the leases that have begun; empty: not reported
-- ARGV[12] number of results
-- ARGV[13..] 5 values for each result, as `end` reads them
-- Returns {1 or 0 for each result, or "alive"; ms until one should look again or -1; 1 if there are too many unsettled
-- ends or the queue is paused, or 0; now in ms; how many jobs of full types were passed over; of each that was taken
-- uuid, bytes, attempt, and empty or uncharged:orphaned:previous:note}
-- include: names
local queue, worker, wanted = ARGV[2], ARGV[3], tonumber(ARGV[5])
local taking_back, count = ARGV[6] == 'dead', tonumber(ARGV[12])
local ring, mine = ring_of(queue), held_by(worker)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Ours say when they are silent; of others we know only when they were heard.
local function alive()
  local until_ms = redis.call('ZSCORE', ring .. 'workers', worker)
  if until_ms then return tonumber(until_ms) > now end
  return tonumber(redis.call('ZSCORE', workers, worker) or 0) > now / 1000 - 30
end
if taking_back and alive() then return {'alive', -1, 0, now, 0} end
-- A key that is something else is refused by this, before anything is changed.
for _, each in ipairs({failed, queues .. queue}) do redis.call('LLEN', each) end
for _, each in ipairs({scheduled, workers, base .. 'queues:active'}) do redis.call('ZCARD', each) end
for _, each in ipairs({active, mine}) do redis.call('SCARD', each) end
-- The first write asks for no memory: so a full Redis refuses what is pushed, and neither work nor its end.
redis.call('EXPIRE', workers, LIFETIME)

-- include: wire
-- include: adding
-- include: holding
-- include: close
-- include: unhandled/delay
-- include: attempts/begun
-- include: attempts/returned
-- include: attempts/returned_of
-- include: end
-- include: take

local answer, taken = end_all(), {}
local full = redis.call('HLEN', ring .. 'finished') >= tonumber(ARGV[7])
local paused = redis.call('EXISTS', ring .. 'paused') == 1
if taking_back then
  if redis.call('EXISTS', mine) == 0 then
    redis.call('ZREM', ring .. 'workers', worker)
    redis.call('ZREM', workers, worker)
    redis.call('HDEL', ring .. 'begun', worker)
  end
else
  redis.call('ZADD', ring .. 'workers', now + tonumber(ARGV[4]), worker)
  redis.call('ZADD', workers, time[1], worker)
  set_begun(ring .. 'begun', worker, ARGV[11])
  if wanted > 0 then
    -- A whole number is of a worker of others: it stays to be seen for a while.
    local seen = tonumber(redis.call('ZSCORE', base .. 'queues:active', queue) or 0.5)
    if seen % 1 > 0 or seen < time[1] - 10 then redis.call('ZADD', base .. 'queues:active', time[1] + 0.5, queue) end
    if not full and not paused then taken = take() end
  end
end
put_back()
redis.call('LTRIM', failed, 0, ARGV[8] - 1)
if full or paused then return {answer, full and 100 or -1, 1, now, passed, unpack(taken)} end
local first = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
return {answer, first and math.max(0, math.ceil(first * 1000 - now)) or -1, 0, now, passed, unpack(taken)}
