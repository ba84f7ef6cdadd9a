-- Set the epoch of a ledger, unless Redis has a newer one.
-- KEYS[1] string: epoch of the ledger
-- ARGV[1] the epoch, a number
-- Returns nothing
local known = tonumber(redis.call('GET', KEYS[1]) or '') or 0
if known < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
