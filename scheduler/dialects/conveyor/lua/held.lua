-- List what a worker holds of a queue.
-- KEYS[1] zset: scheduled; the names of all other keys begin as this does
-- ARGV[1] names: seed or upstream
-- ARGV[2] queue
-- ARGV[3] worker
-- ARGV[4] how many at most
-- ARGV[5] how many bytes at most, and some more
-- Returns of each uuid, bytes, feed:attempt:worker:started:sequence or empty (a worker of others took it), and what is
-- known of the attempts before, or empty
-- include: names
local queue, ring, mine, most = ARGV[2], ring_of(ARGV[2]), held_by(ARGV[3]), tonumber(ARGV[4])
local CHUNK, found, bytes = 100, {}, 0
-- include: wire
local ids = redis.call('SMEMBERS', mine)
for first = 1, #ids, CHUNK do
  if #found >= 4 * most or bytes >= tonumber(ARGV[5]) then break end
  local some, names = {}, {}
  for i = first, math.min(first + CHUNK - 1, #ids) do
    some[#some + 1] = ids[i]
    names[#names + 1] = bodies .. ids[i]
  end
  local leases = redis.call('HMGET', ring .. 'attempts', unpack(some))
  local counts = redis.call('HMGET', ring .. 'returned', unpack(some))
  for i, raw in ipairs(redis.call('MGET', unpack(names))) do
    local job = raw and read(raw)
    if not raw then
      redis.call('SREM', mine, some[i]) -- a worker of others leaves what failed
    elseif leases[i] or not job or job.queue == queue then
      bytes = bytes + #raw
      found[#found + 1] = some[i]
      found[#found + 1] = raw
      found[#found + 1] = leases[i] or ''
      found[#found + 1] = counts[i] or ''
    end
  end
end
return found
