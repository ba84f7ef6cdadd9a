-- Drop dead letters, the oldest first.
-- KEYS[1] list: dead letters
-- KEYS[2] hash: reasons, hash of an entry -> why it is a dead letter
-- ARGV[1] how many at most
-- Returns how many there were
local gone = redis.call('RPOP', KEYS[1], ARGV[1]) or {}
for _, entry in ipairs(gone) do redis.call('HDEL', KEYS[2], redis.sha1hex(entry)) end
return #gone
