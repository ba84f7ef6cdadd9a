-- Pause a queue for a ledger, or resume it and wake a worker.
-- KEYS[1] hash: paused, by which ledgers
-- KEYS[2] list: marker, wakes a waiting worker
-- ARGV[1] paused or resumed
-- ARGV[2] installation of the ledger, or empty
-- Returns 1 if it changes anything, or 0
if ARGV[1] == 'paused' then return redis.call('HSET', KEYS[1], ARGV[2], '1') end
if redis.call('HDEL', KEYS[1], ARGV[2]) == 0 then return 0 end
if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('LPUSH', KEYS[2], '1') end
return 1
