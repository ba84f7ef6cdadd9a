-- Finish some jobs and take the next, on any layout of waiting jobs.
-- KEYS[1] prefix of the queue's keys
-- ARGV[1] worker; ARGV[2] how many to take; ARGV[3] a type that the worker cannot take now, or
-- empty; ARGV[4..] ids of finished jobs
-- Returns id and record of each job taken
local P, worker, wanted, excluded = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local jobs, leases, held, results = P .. 'jobs', P .. 'leases', P .. 'worker:' .. worker, P .. 'results'
-- include
if #ARGV > 3 then
  local ids = {}
  for i = 4, #ARGV do ids[#ids + 1] = ARGV[i] end
  local found = redis.call('HMGET', leases, unpack(ids))
  local ended = {}
  for i, id in ipairs(ids) do if found[i] then ended[#ended + 1] = id end end
  if #ended > 0 then
    redis.call('HDEL', jobs, unpack(ended))
    redis.call('HDEL', leases, unpack(ended))
    redis.call('SREM', held, unpack(ended))
    redis.call('XADD', results, 'MAXLEN', '~', '1000', '*', '1', table.concat(ended, ','))
  end
end
local entries = take(wanted)
if #entries == 0 then return {} end
local ids, lease = {}, {}
for i, entry in ipairs(entries) do
  local id = string.sub(entry, 3, 38)
  ids[i] = id
  lease[#lease + 1] = id
  lease[#lease + 1] = '1:1:1:' .. worker .. ':' .. i
end
local records = redis.call('HMGET', jobs, unpack(ids))
redis.call('HSET', leases, unpack(lease))
redis.call('SADD', held, unpack(ids))
local answer = {}
for i, id in ipairs(ids) do
  answer[2 * i - 1] = id
  answer[2 * i] = records[i] or ''
end
return answer
