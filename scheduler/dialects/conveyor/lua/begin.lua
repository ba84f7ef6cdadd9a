-- Set the mark of a ledger, unless there is a newer one: whoever was slow does not take it back.
-- KEYS[1] string: the ledger's epoch
-- ARGV[1] the mark, a number
-- Returns nothing
local known = tonumber(redis.call('GET', KEYS[1]) or '') or 0
if known < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
