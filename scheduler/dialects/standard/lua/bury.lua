-- Make dead letters of unreadable values.
-- KEYS[1] list: dead letters
-- KEYS[2] hash: reasons, SHA-1 of a dead letter -> why it is one
-- ARGV[1] the dead letter
-- ARGV[2] why it is one
-- Returns nothing
redis.call('LPUSH', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[2], redis.sha1hex(ARGV[1]), ARGV[2])
