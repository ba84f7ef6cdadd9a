-- Count what is in a queue.
-- KEYS[1] list: level critical
-- KEYS[2] list: level high
-- KEYS[3] list: level normal
-- KEYS[4] list: level low
-- KEYS[5] list: level bulk
-- KEYS[6] zset: retries by when they are due
-- KEYS[7] hash: attempts, id -> feed:attempt:worker:started of what a worker has
-- KEYS[8] hash: finished, id -> feed:attempt:stream entry of an end that is not settled
-- KEYS[9] list: dead letters
-- Returns the five levels, retries, running, unsettled ends, dead letters
local counts = {}
for level = 1, 5 do counts[level] = redis.call('LLEN', KEYS[level]) end
counts[6] = redis.call('ZCARD', KEYS[6])
counts[7] = redis.call('HLEN', KEYS[7])
counts[8] = redis.call('HLEN', KEYS[8])
counts[9] = redis.call('LLEN', KEYS[9])
return counts
