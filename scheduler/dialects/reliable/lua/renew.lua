-- Keep a worker's heartbeat, say which of its deliveries are still its own, and keep what their handlers said.
-- KEYS[1] string: the worker's heartbeat
-- KEYS[2] zset: workers by when they are silent, in ms
-- KEYS[3] hash: attempts, id -> feed:attempt:worker:started:sequence of what a worker has
-- KEYS[4] hash: cancels, ids that somebody wants to end
-- KEYS[5] hash: notes, id -> what its handler said
-- KEYS[6] string: what the worker says of itself, behind the time in ms
-- KEYS[7] hash: begun, worker -> mark of the leases that have begun
-- ARGV[1] worker
-- ARGV[2] lease, in ms
-- ARGV[3] what the worker says of itself, or empty: nothing new
-- ARGV[4] mark of the leases that have begun; empty: not reported
-- ARGV[5..] 3 values for each delivery: id, feed:attempt:worker:started:sequence, note as JSON or empty
-- Returns for each k (kept), l (lost) or c (cancel)
local heartbeat, workers, attempts, cancels, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local worker, lease = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('PEXPIRE', heartbeat, lease) -- asks for no memory, and so is not refused when there is none
redis.call('SET', heartbeat, now, 'PXAT', now + lease) -- it ends when the registry says so, however long this takes
redis.call('ZADD', workers, now + lease, worker)
-- include: attempts/begun
set_begun(KEYS[7], worker, ARGV[4])
local answer = {}
for i = 5, #ARGV, 3 do
  local id, note = ARGV[i], ARGV[i + 2]
  if redis.call('HGET', attempts, id) ~= ARGV[i + 1] then
    answer[#answer + 1] = 'l'
  else
    if note ~= '' then redis.call('HSET', notes, id, note) end
    answer[#answer + 1] = redis.call('HEXISTS', cancels, id) == 1 and 'c' or 'k'
  end
end
if ARGV[3] ~= '' then redis.pcall('SET', KEYS[6], now .. ' ' .. ARGV[3], 'PX', lease) end -- leases matter more
return table.concat(answer)
