-- Remove the registration of a worker that ends, unless it still leases jobs.
-- KEYS[1] string: status report of the worker
-- KEYS[2] set: ids that the worker leases
-- KEYS[3] zset: workers by the time in ms at which their registration expires
-- KEYS[4] hash: begun, worker -> mark of the leases that have begun
-- KEYS[5] string: default retry policy of the worker
-- ARGV[1] worker
-- Returns nothing
redis.call('PEXPIRE', KEYS[1], 0)
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('ZREM', KEYS[3], ARGV[1])
  redis.call('HDEL', KEYS[4], ARGV[1])
  redis.call('PEXPIRE', KEYS[5], 0)
end
