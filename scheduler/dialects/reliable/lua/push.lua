-- Put jobs into their lists, each id once until its end is settled.
-- KEYS[1] list: level critical
-- KEYS[2] list: level high
-- KEYS[3] list: level normal
-- KEYS[4] list: level low
-- KEYS[5] list: level bulk
-- KEYS[6] hash: jobs, id -> record
-- KEYS[7] hash: attempts, id -> feed:attempt:worker:started:sequence of what a worker has
-- KEYS[8] hash: between, id -> feed:attempts:due of what waits between two attempts
-- KEYS[9] hash: finished, id -> feed:attempt:stream entry of an end that is not settled
-- KEYS[10] list: marker, for those who wait
-- KEYS[11] string: the ledger's epoch
-- KEYS[12] hash: settled, id -> feed of what ended and was settled lately
-- KEYS[13] hash: the same of a while before
-- KEYS[14] stream: outcomes of the ledger
-- ARGV[1] epoch that Redis must have; empty: any
-- ARGV[2] until when it may be, in ms; empty: whenever
-- ARGV[3..] 4 values for each job: id, number of its level, entry, record
-- Returns "lost", "late", or for each job n (new), r (new, its earlier result is missing), k (known) or f (finished)
local jobs, attempts, between, finished, marker = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local outcomes = KEYS[14]
if ARGV[1] ~= '' and redis.call('GET', KEYS[11]) ~= ARGV[1] then return 'lost' end

-- include: settling/late

if late(ARGV[2]) then return 'late' end

-- include: settling/has_result

-- Fed again although it is here: whoever has it loses its lease. Unless it waits for its time it gets another entry,
-- for its own may be anywhere; of two entries the later is dropped when it is met.
local function feed_again(id, record)
  local feed, attempt = string.match(record, '^(%d+):(%d+):')
  if tonumber(string.match(redis.call('HGET', jobs, id), '^(%d+):')) >= tonumber(feed) then return false end
  redis.call('HSET', jobs, id, record)
  redis.call('HDEL', attempts, id)
  local due = string.match(redis.call('HGET', between, id) or '', '(%d+)$')
  if not due or due == '0' then
    redis.call('HDEL', between, id)
    return true
  end
  redis.call('HSET', between, id, feed .. ':' .. attempt .. ':' .. due)
  return false
end

local ids, answer, lists, any, new, seen = {}, {}, {}, false, {}, {}
local function write()
  if #new > 0 then redis.call('HSET', jobs, unpack(new)) end
  new = {}
end

for i = 1, (#ARGV - 2) / 4 do ids[i] = ARGV[4 * i - 1] end
local over, known = redis.call('HMGET', finished, unpack(ids)), redis.call('HMGET', jobs, unpack(ids))
local settled = settled_lately(KEYS[12], KEYS[13], ids)

for i, id in ipairs(ids) do
  local level, entry, record = tonumber(ARGV[4 * i]), ARGV[4 * i + 1], ARGV[4 * i + 2]
  local fresh, mark = false, over[i]
  if mark and not seen[id] and has_result(mark) then
    answer[i] = 'f'
  elseif not known[i] and settled[i] and settled[i] >= tonumber(string.match(record, '^(%d+):')) then
    answer[i] = 'f'
  elseif not known[i] and not seen[id] then
    answer[i], fresh, seen[id] = mark and 'r' or 'n', true, true
    if mark then redis.call('HDEL', finished, id) end
    new[#new + 1] = id
    new[#new + 1] = record
  else
    write() -- it may be among these
    answer[i], fresh = 'k', feed_again(id, record)
  end
  if fresh then
    lists[level] = lists[level] or {}
    table.insert(lists[level], entry)
    any = true
  end
end
write()
for level, entries in pairs(lists) do redis.call('LPUSH', KEYS[level], unpack(entries)) end
if any and redis.call('EXISTS', marker) == 0 then redis.call('LPUSH', marker, '1') end
return table.concat(answer)
