-- Let a worker go that ends.
-- KEYS[1] hash: meta of the queue; the names of all other keys begin as this does
-- ARGV[1] worker
-- Returns nothing
local base = string.sub(KEYS[1], 1, -5)
redis.call('DEL', base .. 'ring:said:' .. ARGV[1])
redis.call('ZREM', base .. 'ring:workers', ARGV[1])
redis.call('DEL', base .. 'ring:retry:' .. ARGV[1])
