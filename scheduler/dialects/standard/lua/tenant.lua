-- Pause a tenant for a ledger.
-- KEYS[1] hash: paused:tenants, tenant -> the ledgers that paused it, each followed by a space
-- ARGV[1] tenant
-- ARGV[2] installation of the ledger
-- Returns nothing
local ledgers, mine = redis.call('HGET', KEYS[1], ARGV[1]) or '', ARGV[2] .. ' '
if string.find(' ' .. ledgers, ' ' .. mine, 1, true) then return end
redis.call('HSET', KEYS[1], ARGV[1], ledgers .. mine)
