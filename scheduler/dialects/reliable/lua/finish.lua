-- End deliveries of a worker, each if its lease is still that worker's, and take the next jobs.
-- KEYS[1] list: level critical
-- KEYS[2] list: level high
-- KEYS[3] list: level normal
-- KEYS[4] list: level low
-- KEYS[5] list: level bulk
-- KEYS[6] list: what the worker holds
-- KEYS[7] string: the worker's heartbeat
-- KEYS[8] hash: jobs, id -> record
-- KEYS[9] hash: attempts, id -> feed:attempt:worker:started (no worker: between two attempts)
-- KEYS[10] zset: retries, level and entry by when they are due, in ms
-- KEYS[11] hash: finished, id -> feed:attempt of an end that is not settled
-- KEYS[12] zset: workers by when they are silent, in ms
-- KEYS[13] list: marker, for those who wait
-- KEYS[14] list: dead letters
-- KEYS[15] hash: reasons, why an entry is a dead letter
-- KEYS[16] list: completed
-- KEYS[17] hash: cancels, ids that somebody wants to end
-- KEYS[18] hash: notes, id -> what its handler said
-- KEYS[19] stream: outcomes of the first ledger; more ledgers follow
-- ARGV[1] worker
-- ARGV[2] lease, in ms
-- ARGV[3] how many to take
-- ARGV[4] live, or dead: another takes back what a silent worker holds
-- ARGV[5] most unsettled ends
-- ARGV[6] most entries kept in completed and in dead letters
-- ARGV[7] how long completed is kept, in ms
-- ARGV[8] number of results; 8 values each follow: id, feed:attempt, verb (completed, dead, cancelled, retry, back),
--         (feed:attempt is empty for what a worker of the original took) entry, delay in ms or the attempts before, level and entry to go on with, end as JSON, number of its ledger
-- Returns {1 or 0 for each result, or "alive"; ms until the next retry or -1; now in ms; entry, record, attempt, ..}
local processing, heartbeat, jobs, attempts = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local retries, finished, workers, marker = KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local dead, reasons, completed, cancels, notes = KEYS[14], KEYS[15], KEYS[16], KEYS[17], KEYS[18]
local worker, lease, wanted, kept = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[6])
local most_unsettled = tonumber(ARGV[5])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- include: take

if ARGV[4] == 'dead' and redis.call('EXISTS', heartbeat) == 1 then
  return {'alive', -1, now}
end

local count = tonumber(ARGV[8])
local answer, over, tombs, good, bad, ends = {}, {}, {}, {}, {}, {}
local ids = {}
for i = 1, count do ids[i] = ARGV[1 + 8 * i] end
local held = count > 0 and redis.call('HMGET', attempts, unpack(ids)) or {}
for i = 1, count do
  local at = 8 + 8 * (i - 1)
  local id, token, verb, entry = ids[i], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local delay, again, outcome, ledger = tonumber(ARGV[at + 5]), ARGV[at + 6], ARGV[at + 7], tonumber(ARGV[at + 8])
  local mine = token .. ':' .. worker .. ':'
  local ours = held[i] and string.sub(held[i], 1, #mine) == mine
  if token == '' then ours = not held[i] end  -- a worker of the original took it: it knows no leases
  redis.call('LREM', processing, -1, entry)
  answer[i] = ours and '1' or '0'
  if ours and verb == 'back' then
    redis.call('RPUSH', KEYS[tonumber(string.sub(again, 1, 1))], string.sub(again, 2))
    if delay == 0 then
      redis.call('HDEL', attempts, id)
    else
      redis.call('HSET', attempts, id, string.match(token, '^%d+') .. ':' .. delay .. '::0')
    end
  elseif ours and verb == 'retry' then
    redis.call('ZADD', retries, now + delay, again)
    redis.call('HSET', attempts, id, token .. '::0')
  elseif ours then
    over[#over + 1] = id
    if verb == 'completed' then good[#good + 1] = entry elseif verb == 'dead' then bad[#bad + 1] = entry end
    if ledger > 0 then
      tombs[#tombs + 1] = id
      tombs[#tombs + 1] = token
    end
  end
  if ours and ledger > 0 and outcome ~= '' then
    ends[ledger] = ends[ledger] or {}
    table.insert(ends[ledger], outcome)
  end
end
if #over > 0 then
  for _, key in ipairs({jobs, attempts, cancels, notes}) do redis.call('HDEL', key, unpack(over)) end
end
if #tombs > 0 then redis.call('HSET', finished, unpack(tombs)) end
for ledger, batch in pairs(ends) do
  redis.call('XADD', KEYS[18 + ledger], '*', 'ends', '[' .. table.concat(batch, ',') .. ']')
end
if #good > 0 then
  redis.call('LPUSH', completed, unpack(good))
  redis.call('LTRIM', completed, 0, kept - 1)
  redis.call('PEXPIRE', completed, ARGV[7])
end
if #bad > 0 then redis.call('LPUSH', dead, unpack(bad)) end
if ARGV[4] == 'dead' then
  if redis.call('EXISTS', processing) == 0 then redis.call('ZREM', workers, worker) end
  wake()
  return {table.concat(answer), -1, now}
end

redis.call('SET', heartbeat, now, 'PX', lease)
redis.call('ZADD', workers, now + lease, worker)
local taken = take()
wake()
while redis.call('LLEN', dead) > kept do
  local oldest = redis.call('RPOP', dead)
  redis.call('HDEL', reasons, string.match(oldest, '"id":"([^"]+)"') or redis.sha1hex(oldest))
end
local first = redis.call('ZRANGE', retries, 0, 0, 'WITHSCORES')
return {table.concat(answer), first[2] and math.max(0, first[2] - now) or -1, now, unpack(taken)}
