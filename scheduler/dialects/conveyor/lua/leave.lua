-- Let a worker go that ends, unless it still holds something.
-- KEYS[1] zset: scheduled; the names of all other keys begin as this does
-- ARGV[1] names: seed or upstream
-- ARGV[2] queue
-- ARGV[3] worker
-- Returns nothing
-- include: names
local ring, worker = ring_of(ARGV[2]), ARGV[3]
redis.call('DEL', ring .. 'said:' .. worker)
if redis.call('SCARD', held_by(worker)) == 0 then
  redis.call('ZREM', ring .. 'workers', worker)
  redis.call('ZREM', workers, worker)
  redis.call('HDEL', ring .. 'begun', worker)
  redis.call('DEL', ring .. 'retry:' .. string.sub(worker, 1, -#ARGV[2] - 2)) -- its name without the queue
end
