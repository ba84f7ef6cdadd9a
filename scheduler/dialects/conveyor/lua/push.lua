-- Put jobs of a ledger in, each id once until its end is settled.
-- KEYS[1] zset: scheduled; the names of all other keys begin as this does
-- ARGV[1] names: seed or upstream
-- ARGV[2] queue
-- ARGV[3] epoch that Redis must have; empty: any
-- ARGV[4] installation: whose epoch it is
-- ARGV[5] until when it may be, in ms; empty: whenever
-- ARGV[6..] 5 values for each job: uuid, feed, attempts before, number of its level, bytes
-- Returns "lost", "late", "shared" (a worker of others takes jobs from the queue), or for each job n (new), r (new,
-- its earlier result is missing), k (known) or f (finished)
-- include: names
local queue, epoch, ring = ARGV[2], ARGV[3], ring_of(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- include: wire
-- include: adding
-- include: settling/late
local outcomes = ring .. 'outcomes:' .. ARGV[4]
-- include: settling/has_result
redis.call('LLEN', queues .. queue) -- one that is something else is refused before anything is changed
redis.call('ZCARD', scheduled)
if epoch ~= '' and redis.call('GET', ring .. 'epoch:' .. ARGV[4]) ~= epoch then return 'lost' end
if late(ARGV[5]) then return 'late' end
local seen = tonumber(redis.call('ZSCORE', base .. 'queues:active', queue) or 0.5)
if ARGV[4] ~= '' and seen % 1 == 0 and seen > time[1] - 10 then return 'shared' end

-- Fed again although it is here: whoever has it loses it. One that waits for its time waits on; of two entries the one
-- of the earlier feed is dropped when it is met.
local function feed_again(uuid, feed, attempts, before, raw)
  if tonumber(string.match(before, '^%d+')) >= tonumber(feed) then return false end
  redis.call('HSET', ring .. 'jobs', uuid, feed .. ':' .. attempts)
  local lease = redis.call('HGET', ring .. 'attempts', uuid)
  if lease then
    redis.call('HDEL', ring .. 'attempts', uuid)
    local owner = string.match(lease, '^%d+:%d+:(.*):%d+:%d+$')
    if owner then redis.call('SREM', held_by(owner), uuid) end
    redis.call('SREM', active, uuid)
    redis.call('DEL', bodies .. uuid)
  end
  local due = redis.call('ZSCORE', ring .. 'retries', uuid)
  if not due then return true end
  redis.call('ZADD', scheduled, seconds(tonumber(due)), raw)
  return false
end

local ids, answer, lists, new, seen_ids = {}, {}, {}, {}, {}
for i = 6, #ARGV, 5 do ids[#ids + 1] = ARGV[i] end
local over = redis.call('HMGET', ring .. 'finished', unpack(ids))
local known = redis.call('HMGET', ring .. 'jobs', unpack(ids))
local settled = settled_lately(ring .. 'settled', ring .. 'settled:before', ids)
for i, uuid in ipairs(ids) do
  local feed, attempts, level, raw = unpack(ARGV, 5 * i + 2, 5 * i + 5)
  local before, fresh, mark = known[i] or seen_ids[uuid], false, over[i]
  if mark and not seen_ids[uuid] and has_result(mark) then
    answer[i] = 'f'
  elseif not before and settled[i] and settled[i] >= tonumber(feed) then
    answer[i] = 'f'
  elseif not before then
    answer[i], fresh = mark and 'r' or 'n', true
    if mark then redis.call('HDEL', ring .. 'finished', uuid) end
    seen_ids[uuid] = feed .. ':' .. attempts
    new[#new + 1] = uuid
    new[#new + 1] = seen_ids[uuid]
  else
    answer[i], fresh = 'k', feed_again(uuid, feed, attempts, before, raw)
  end
  if fresh then
    local list = list_of(queue, tonumber(level))
    lists[list] = lists[list] or {}
    table.insert(lists[list], raw)
    say(raw, ENQUEUED)
  end
end
if #new > 0 then redis.call('HSET', ring .. 'jobs', unpack(new)) end
for list, raws in pairs(lists) do redis.call('LPUSH', list, unpack(raws)) end
return table.concat(answer)
