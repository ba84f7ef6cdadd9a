-- Let a worker go that ends.
-- KEYS[1] hash: meta of the queue; the names of all other keys begin as this does
-- ARGV[1] worker
-- Returns nothing
local base, HOUR = string.sub(KEYS[1], 1, -5), 3600000
redis.call('DEL', base .. 'ring:said:' .. ARGV[1])
redis.call('ZREM', base .. 'ring:workers', ARGV[1])
redis.call('PEXPIRE', base .. 'ring:retry:' .. ARGV[1], HOUR) -- a job that it could not put back may need it
