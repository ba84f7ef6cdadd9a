-- Keep a worker's heartbeat, say which of its deliveries are still its own, and keep what their handlers said.
-- KEYS[1] zset: scheduled; the names of all other keys begin as this does
-- ARGV[1] names: seed or upstream
-- ARGV[2] queue
-- ARGV[3] worker
-- ARGV[4] lease, in ms
-- ARGV[5] what the worker says of itself, or empty: nothing new
-- ARGV[6] mark of the leases that have begun; empty: not reported
-- ARGV[7..] 3 values for each delivery: uuid, feed:attempt:worker:started:sequence, note as JSON or empty
-- Returns for each k (kept), l (lost) or c (cancel)
-- include: names
local ring, worker = ring_of(ARGV[2]), ARGV[3]
local time = redis.call('TIME')
redis.call('EXPIRE', workers, LIFETIME) -- asks for no memory, and so is not refused when there is none
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', ring .. 'workers', now + tonumber(ARGV[4]), worker)
redis.call('ZADD', workers, time[1], worker)
-- include: attempts/begun
set_begun(ring .. 'begun', worker, ARGV[6])
local answer = {}
for i = 7, #ARGV, 3 do
  local uuid, token, note = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local lease = redis.call('HGET', ring .. 'attempts', uuid)
  if lease ~= token or redis.call('SISMEMBER', held_by(worker), uuid) == 0 then
    answer[#answer + 1] = 'l'
  else
    if note ~= '' then redis.call('HSET', ring .. 'notes', uuid, note) end
    answer[#answer + 1] = redis.call('HEXISTS', ring .. 'cancels', uuid) == 1 and 'c' or 'k'
  end
end
if ARGV[5] ~= '' then redis.pcall('SET', ring .. 'said:' .. worker, now .. ' ' .. ARGV[5], 'PX', ARGV[4]) end
return table.concat(answer)
