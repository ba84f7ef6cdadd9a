-- Keep the locks of a worker's deliveries, say which of them are still its own, and keep what their handlers said.
-- KEYS[1] hash: meta of the queue; the names of all other keys begin as this does
-- ARGV[1] worker
-- ARGV[2] lease, in ms
-- ARGV[3] what the worker says of itself, or empty: nothing new
-- ARGV[4] mark of the leases that have begun; empty: not reported
-- ARGV[5..] 4 values for each delivery: id, token, note as JSON or empty, progress as JSON or empty
-- Returns for each k (kept), l (lost) or c (cancel)
local base, worker, lease = string.sub(KEYS[1], 1, -5), ARGV[1], ARGV[2]

-- include: begun

-- A lock that ran out is nobody's as long as nobody took the job since.
local function holds(id, token, lock, job)
  if lock then return lock == token end
  if job[1] ~= worker or job[2] ~= string.match(token, ':(%d+):%d+:[^:]*:%d+$') then return false end
  return redis.call('LPOS', base .. 'active', id)
end

-- Needs no memory, so a full Redis refuses no write after it.
redis.call('PEXPIRE', base .. 'ring:begun:' .. worker, WEEK)
local answer, kept = {}, {}
for i = 5, #ARGV, 4 do
  local id, token, note, progress = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local key = base .. id
  local job = redis.call('HMGET', key, 'pb', 'ats', 'cancel', 'name')
  if not job[4] or not holds(id, token, redis.call('GET', key .. ':lock'), job) then
    answer[#answer + 1] = 'l'
  else
    redis.call('SET', key .. ':lock', token, 'PX', lease)
    kept[#kept + 1] = id
    if note ~= '' then redis.call('HSET', key, 'note', note) end
    if progress ~= '' then
      redis.call('HSET', key, 'progress', progress)
      redis.call('XADD', base .. 'events', '*', 'event', 'progress', 'jobId', id, 'data', progress)
    end
    answer[#answer + 1] = job[3] and 'c' or 'k'
  end
end
if #kept > 0 then redis.call('SREM', base .. 'stalled', unpack(kept)) end
set_begun(ARGV[4])
if ARGV[3] ~= '' then
  local time, workers = redis.call('TIME'), base .. 'ring:workers'
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.pcall('SET', base .. 'ring:said:' .. worker, now .. ' ' .. ARGV[3], 'PX', lease)
  local gone = redis.call('ZRANGEBYSCORE', workers, '-inf', now, 'LIMIT', 0, 100)
  if #gone > 0 then redis.call('ZREM', workers, unpack(gone)) end
  redis.pcall('ZADD', workers, now + lease, worker)
  if redis.call('PTTL', workers) < tonumber(lease) then redis.call('PEXPIRE', workers, lease) end
end
return table.concat(answer)
