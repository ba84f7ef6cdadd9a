-- Renew the registration of a worker, report which of its deliveries it still leases, and store their progress.
-- KEYS[1] string: status report of the worker, behind the time in ms
-- KEYS[2] zset: workers by the time in ms at which their registration expires
-- KEYS[3] hash: leases, id -> lease
-- KEYS[4] hash: cancels, ids of leased jobs whose cancellation is requested
-- KEYS[5] hash: notes, id -> progress
-- KEYS[6] hash: begun, worker -> mark of the leases that have begun
-- ARGV[1] worker
-- ARGV[2] duration of the lease in ms
-- ARGV[3] status report; empty: unchanged
-- ARGV[4] mark of the leases that have begun; empty: not reported
-- ARGV[5] number of deliveries
-- ARGV[6..] ids, then epoch:attempt:sequence of each delivery, then progress as JSON or empty
-- Returns for each delivery k (kept), l (lost) or c (cancel)
local status, workers, leases, cancels, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local worker, duration, count = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5])
local mine, time, answer, progress = ':' .. worker .. ':', redis.call('TIME'), {}, {}
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('PEXPIRE', status, duration) -- needs no memory, so a full Redis refuses no write after it
redis.call('ZADD', workers, now + duration, worker)
-- include: attempts/begun
set_begun(KEYS[6], worker, ARGV[4])
if count > 0 then
  local found = redis.call('HMGET', leases, unpack(ARGV, 6, 5 + count))
  local requested = redis.call('EXISTS', cancels) == 1
  local cancelled = requested and redis.call('HMGET', cancels, unpack(ARGV, 6, 5 + count)) or {}
  for i = 1, count do
    local lease, token, note = found[i], ARGV[5 + count + i], ARGV[5 + 2 * count + i]
    if lease and string.sub(lease, 1, 2) == '1:' and string.sub(lease, -#mine - #token) == mine .. token then
      answer[i] = cancelled[i] and 'c' or 'k'
      if note ~= '' then
        progress[#progress + 1] = ARGV[5 + i]
        progress[#progress + 1] = note
      end
    else
      answer[i] = 'l'
    end
  end
  if #progress > 0 then redis.call('HSET', notes, unpack(progress)) end
end
if ARGV[3] ~= '' then redis.pcall('SET', status, now .. ' ' .. ARGV[3], 'PX', duration) end -- leases matter more
return table.concat(answer)
