-- Delete given dead letters.
-- KEYS[1] list: dead letters
-- KEYS[2] hash: reasons, SHA-1 of a dead letter -> why it is one
-- ARGV[1..] dead letters
-- Returns how many were deleted
local gone = 0
for _, letter in ipairs(ARGV) do
  gone = gone + redis.call('LREM', KEYS[1], -1, letter)
  redis.call('HDEL', KEYS[2], redis.sha1hex(letter))
end
return gone
