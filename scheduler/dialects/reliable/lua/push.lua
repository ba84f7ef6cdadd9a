-- Put jobs into their lists, each id once until its end is settled.
-- KEYS[1] list: level critical
-- KEYS[2] list: level high
-- KEYS[3] list: level normal
-- KEYS[4] list: level low
-- KEYS[5] list: level bulk
-- KEYS[6] hash: jobs, id -> record
-- KEYS[7] hash: attempts, id -> feed:attempt:worker:started
-- KEYS[8] hash: finished, id -> feed:attempt of an end that is not settled
-- KEYS[9] list: marker, for those who wait
-- KEYS[10] string: the ledger's epoch
-- ARGV[1] epoch that Redis must have; empty: any
-- ARGV[2..] 4 values for each job: id, number of its level, entry, record
-- Returns "lost", or for each job n (new), k (known) or f (finished)
local jobs, attempts, finished, marker = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
if ARGV[1] ~= '' and redis.call('GET', KEYS[10]) ~= ARGV[1] then return 'lost' end

local count = (#ARGV - 1) / 4
local ids, answer, lists = {}, {}, {}
for i = 1, count do ids[i] = ARGV[4 * i - 2] end
local over = redis.call('HMGET', finished, unpack(ids))
for i, id in ipairs(ids) do
  local level, entry, record = tonumber(ARGV[4 * i - 1]), ARGV[4 * i], ARGV[4 * i + 1]
  local fresh = false
  if over[i] then
    answer[i] = 'f'
  elseif redis.call('HSETNX', jobs, id, record) == 1 then
    answer[i] = 'n'
    fresh = true
  else
    answer[i] = 'k'
    local known = string.match(redis.call('HGET', jobs, id), '^(%d+):')
    if tonumber(known) < tonumber(string.match(record, '^(%d+):')) then
      -- Fed again although it is here: the older feed loses its lease, and is in no list while a worker has it.
      local held = redis.call('HGET', attempts, id)
      fresh = held and string.match(held, '^%d+:%d+:([^:]+):') and true or false
      redis.call('HSET', jobs, id, record)
      redis.call('HDEL', attempts, id)
    end
  end
  if fresh then
    lists[level] = lists[level] or {}
    table.insert(lists[level], entry)
  end
end
local any = false
for level, entries in pairs(lists) do
  redis.call('LPUSH', KEYS[level], unpack(entries))
  any = true
end
if any and redis.call('LLEN', marker) == 0 then redis.call('LPUSH', marker, '1') end
return table.concat(answer)
