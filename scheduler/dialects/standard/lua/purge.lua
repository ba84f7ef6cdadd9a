-- Delete dead letters, oldest first.
-- KEYS[1] list: dead letters
-- KEYS[2] hash: reasons, SHA-1 of a dead letter -> why it is one
-- ARGV[1] maximum to delete
-- Returns how many were deleted
local gone = redis.call('RPOP', KEYS[1], ARGV[1]) or {}
for _, letter in ipairs(gone) do redis.call('HDEL', KEYS[2], redis.sha1hex(letter)) end
return #gone
