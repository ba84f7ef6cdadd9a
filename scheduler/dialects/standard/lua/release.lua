-- Resume a tenant for a ledger, and enqueue its blocked jobs as a push does, unless another ledger pauses it.
-- A crash between two calls leaves blocked jobs of a tenant that is not paused: `tenants` finds them.
-- KEYS[1] hash: paused:tenants, tenant -> the ledgers that paused it, each followed by a space
-- KEYS[2] zset: waiting, entries by level and start time
-- KEYS[3] zset: turns, virtual times of levels and next starts of tenants
-- KEYS[4] zset: blocked, entries that a worker could not take, by reason
-- KEYS[5] hash: blocked:counts, reason -> number of entries
-- KEYS[6] hash: state, id -> blocked, retrying, or waiting with the counts of earlier attempts
-- KEYS[7] list: marker, wakes a waiting worker
-- ARGV[1] tenant
-- ARGV[2] installation of the ledger
-- ARGV[3] maximum of jobs
-- Returns the number of jobs that were enqueued
local waiting, turns, blocked, counts, state = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local tenant, marker = ARGV[1], KEYS[7]
local ledgers, mine = ' ' .. (redis.call('HGET', KEYS[1], tenant) or ''), ' ' .. ARGV[2] .. ' '
local first, last = string.find(ledgers, mine, 1, true)
if first then ledgers = string.sub(ledgers, 1, first) .. string.sub(ledgers, last + 1) end
ledgers = string.sub(ledgers, 2)
if ledgers ~= '' then
  redis.call('HSET', KEYS[1], tenant, ledgers)
  return 0
end
redis.call('HDEL', KEYS[1], tenant)

-- include: enqueue
-- include: discount

local reason = 'tenant:' .. tenant
local members = redis.call('ZRANGEBYLEX', blocked, '[' .. reason .. '\0', '(' .. reason .. '\1', 'LIMIT', 0, ARGV[3])
if #members == 0 then
  redis.call('HDEL', counts, reason)
  return 0
end
local ids, names, entries, states, fresh = {}, {}, {}, {}, {}
for i, member in ipairs(members) do
  local score, entry = string.sub(member, #reason + 2, #reason + 17), string.sub(member, #reason + 18)
  ids[i] = string.match(entry, '^1\31([^\31]*)') or ''
  names[i], entries[i] = math.floor(tonumber(score) / SPAN) .. ':' .. tenant, entry
end
for i, at in ipairs(redis.call('HMGET', state, unpack(ids))) do
  local counted = string.match(at or '', '^1:blocked:(%d+:%d+:%d+:%d:[^:]*):%d+:tenant:')
  if counted == '0:0:0:0:' then
    fresh[#fresh + 1] = ids[i]
  elseif counted then
    states[#states + 1] = ids[i]
    states[#states + 1] = '1:waiting:' .. counted
  end
end
redis.call('ZREM', blocked, unpack(members))
discount(reason, #members)
if #fresh > 0 then redis.call('HDEL', state, unpack(fresh)) end
if #states > 0 then redis.call('HSET', state, unpack(states)) end
enqueue(names, entries)
if redis.call('EXISTS', marker) == 0 then redis.call('LPUSH', marker, '1') end
return #members
