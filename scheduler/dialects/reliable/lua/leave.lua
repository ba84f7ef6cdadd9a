-- Let a worker go that ends, unless it still holds something.
-- KEYS[1] list: processing, of the worker
-- KEYS[2] string: heartbeat of the worker
-- KEYS[3] zset: workers by when they are silent, in ms
-- KEYS[4] string: what the worker says of itself
-- KEYS[5] string: default retry policy of the worker
-- KEYS[6] hash: begun, worker -> mark of the leases that have begun
-- ARGV[1] worker
-- Returns nothing
redis.call('PEXPIRE', KEYS[4], 0)
if redis.call('LLEN', KEYS[1]) == 0 then
  redis.call('PEXPIRE', KEYS[2], 0)
  redis.call('ZREM', KEYS[3], ARGV[1])
  redis.call('PEXPIRE', KEYS[5], 0)
  redis.call('HDEL', KEYS[6], ARGV[1])
end
