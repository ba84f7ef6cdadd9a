-- Count what is in a queue.
-- KEYS[1] zset: scheduled; the names of all other keys begin as this does
-- ARGV[1] names: seed or upstream
-- ARGV[2] queue
-- Returns the five levels, retries, running, unsettled ends, and what failed in all queues
-- include: names
local ring, counts = ring_of(ARGV[2]), {}
for level = 0, #LEVELS - 1 do counts[#counts + 1] = redis.call('LLEN', list_of(ARGV[2], level)) end
counts[#counts + 1] = redis.call('ZCARD', ring .. 'retries')
counts[#counts + 1] = redis.call('HLEN', ring .. 'attempts')
counts[#counts + 1] = redis.call('HLEN', ring .. 'finished')
counts[#counts + 1] = redis.call('LLEN', failed)
return counts
