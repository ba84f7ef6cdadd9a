-- Enqueue jobs, each id once until its result is settled.
-- KEYS[1] hash: jobs, id -> record
-- KEYS[2] hash: leases, id -> lease
-- KEYS[3] hash: state, id -> blocked, retrying, or waiting with the counts of earlier attempts
-- KEYS[4] hash: finished, id -> mark of a result that is not settled
-- KEYS[5] zset: waiting, entries by level and start time
-- KEYS[6] zset: turns, virtual times of levels and next starts of tenants
-- KEYS[7] zset: blocked, entries that a worker could not take, by reason
-- KEYS[8] hash: blocked:counts, reason -> number of entries
-- KEYS[9] zset: retrying, entries by due time in ms
-- KEYS[10] list: marker, wakes a waiting worker
-- KEYS[11] string: epoch of the ledger
-- KEYS[12] hash: settled, id -> epoch of jobs that were settled recently
-- KEYS[13] hash: settled:before, the same of the time before
-- KEYS[14] stream: results of the ledger
-- ARGV[1] epoch that Redis must have; empty: any
-- ARGV[2] deadline of the push in ms of Redis's clock; empty: none
-- ARGV[3..] 4 values for each job: id, level:tenant, entry, record
-- Returns {"lost"}, {"late"}, or {for each job n (new), r (new, its earlier result is missing), k (known) or
-- f (finished); numbers of newer formats}
local jobs, leases, state, finished, waiting, turns = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local blocked, counts, retrying, marker, results = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[14]
if ARGV[1] ~= '' and redis.call('GET', KEYS[11]) ~= ARGV[1] then return {'lost'} end

-- include: settling/late

if late(ARGV[2]) then return {'late'} end

-- include: formats
-- include: enqueue
-- include: discount
-- include: remove
-- include: has_result

local answer, new, names, entries, seen = {}, {}, {}, {}, {}

local function write()
  if #new > 0 then redis.call('HSET', jobs, unpack(new)) end
  new = {}
end

-- Replace a job by one of a later epoch: a worker that leases it loses the lease, and a retry keeps its due time.
-- Returns whether the job has to be enqueued.
local function replace(id, name, entry, record)
  local before = redis.call('HGET', jobs, id)
  local lease, at = redis.call('HGET', leases, id) or '', redis.call('HGET', state, id) or ''
  if newer_format(before) or newer_format(lease) or newer_format(at) then return false end
  local epoch, attempt, charged = string.match(record, '^1:(%d+):(%d+):(%d+):')
  local last = tonumber(string.match(before, '^1:(%d+):'))
  if last and last >= tonumber(epoch) then return false end
  local due = remove(id, before)
  redis.call('HSET', jobs, id, record)
  redis.call('HDEL', leases, id)
  if not due then
    redis.call('HDEL', state, id)
    return true
  end
  redis.call('ZADD', retrying, due, entry)
  local level = string.sub(name, 1, 1)
  redis.call('HSET', state, id, table.concat({'1:retrying', epoch, attempt, charged, '0', '', level, due}, ':'))
  return false
end

local ids = {}
for i = 1, (#ARGV - 2) / 4 do ids[i] = ARGV[4 * i - 1] end
local marks, known = redis.call('HMGET', finished, unpack(ids)), redis.call('HMGET', jobs, unpack(ids))
local settled = settled_lately(KEYS[12], KEYS[13], ids)

for i, id in ipairs(ids) do
  local name, entry, record = ARGV[4 * i], ARGV[4 * i + 1], ARGV[4 * i + 2]
  local fresh = false
  if known[i] or seen[id] then
    write() -- the job can be among these
    answer[i], fresh = 'k', replace(id, name, entry, record)
  elseif marks[i] and has_result(marks[i]) then
    answer[i] = 'f'
  elseif settled[i] and settled[i] >= tonumber(string.match(record, '^1:(%d+):')) then
    answer[i] = 'f'
  else
    answer[i], fresh, seen[id] = marks[i] and 'r' or 'n', true, true
    if marks[i] then redis.call('HDEL', finished, id) end
    new[#new + 1] = id
    new[#new + 1] = record
  end
  if fresh then
    names[#names + 1] = name
    entries[#entries + 1] = entry
  end
end
write()
enqueue(names, entries)
if #names > 0 and redis.call('EXISTS', marker) == 0 then redis.call('LPUSH', marker, '1') end
return {table.concat(answer), newer_formats()}
