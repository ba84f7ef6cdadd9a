-- List the tenants that a ledger has paused, and those whose jobs are blocked although no ledger pauses them.
-- KEYS[1] hash: paused:tenants, tenant -> the ledgers that paused it, each followed by a space
-- KEYS[2] hash: blocked:counts, reason -> number of entries
-- ARGV[1] installation of the ledger
-- Returns {tenants that it has paused; tenants to resume}
local paused, released = {}, {}
local all, mine = redis.call('HGETALL', KEYS[1]), ' ' .. ARGV[1] .. ' '
for i = 1, #all, 2 do
  if string.find(' ' .. all[i + 1], mine, 1, true) then paused[#paused + 1] = all[i] end
end
for _, reason in ipairs(redis.call('HKEYS', KEYS[2])) do
  local tenant = string.match(reason, '^tenant:(.*)$')
  if tenant and redis.call('HEXISTS', KEYS[1], tenant) == 0 then released[#released + 1] = tenant end
end
return {paused, released}
