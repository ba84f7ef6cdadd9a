-- End or return deliveries of a worker, each if its lease is still held, and lease the next jobs.
-- KEYS[1] zset: waiting, entries by level and start time
-- KEYS[2] zset: turns, virtual times of levels and next starts of tenants
-- KEYS[3] zset: blocked, entries that a worker could not take, by reason
-- KEYS[4] hash: blocked:counts, reason -> number of entries
-- KEYS[5] hash: jobs, id -> record
-- KEYS[6] hash: leases, id -> lease
-- KEYS[7] hash: state, id -> blocked, retrying, or waiting with the counts of earlier attempts
-- KEYS[8] zset: retrying, entries by due time in ms
-- KEYS[9] hash: finished, id -> mark of a result that is not settled
-- KEYS[10] zset: workers by the time in ms at which their registration expires
-- KEYS[11] set: ids that the worker leases
-- KEYS[12] hash: begun, worker -> mark of the leases that have begun
-- KEYS[13] list: marker, wakes a waiting worker
-- KEYS[14] list: dead letters
-- KEYS[15] hash: reasons, SHA-1 of a dead letter -> why it is one
-- KEYS[16] hash: cancels, ids of leased jobs whose cancellation is requested
-- KEYS[17] hash: notes, id -> progress
-- KEYS[18] hash: paused, by which ledgers
-- KEYS[19] string: status report of the worker
-- KEYS[20] hash: paused:tenants, tenant -> the ledgers that paused it
-- KEYS[21] stream: results of the first ledger; those of more ledgers follow
-- ARGV[1] worker
-- ARGV[2] duration of the lease in ms
-- ARGV[3] number of jobs to lease
-- ARGV[4] live, or recover: the registration of the worker has expired, and another process ends its leases
-- ARGV[5] maximum of unsettled results
-- ARGV[6] maximum of dead letters
-- ARGV[7] place among 31 after which levels have their shares; empty: higher levels first
-- ARGV[8] sequence number of the first lease
-- ARGV[9] mark of the leases that have begun; empty: not reported
-- ARGV[10] number of results
-- ARGV[11] number of handled types; empty: every type
-- ARGV[12] number of types with a limit
-- ARGV[13..] ids, heads of results, handled types, type and free slots of each limit, results and their lengths for
-- each ledger, then values that follow heads, as `close` describes
-- Returns {1 or 0 for each result, or "alive"; ms until the next poll or -1; now in ms; types to signal; numbers of
-- newer formats; id, record, and attempt:charged:orphaned:previous:progress or empty of each leased job}
local waiting, turns, blocked, counts, jobs = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local leases, state, retrying, finished, workers = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local held, marker, dead, reasons, cancels, notes = KEYS[11], KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17]
local worker, duration, wanted = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local recovering, place, count = ARGV[4] == 'recover', tonumber(ARGV[7]), tonumber(ARGV[10])
local FIRST, POLL = 12, 1000 -- values before the first id; ms between polls while jobs are blocked
local MAX_BYTES, CHUNK = 16 * 1024 * 1024, 100 -- of records that are leased; entries that are read at a time
local REASONS = 1000 -- why jobs are blocked, read at a time
local SWEEP = 32 -- leases after which tenants that the virtual time has passed are removed
local mine, time = ':' .. worker .. ':', redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Whether a waiting worker has to learn the time of the next retry, because this worker will not poll then.
local restless = count == 0 and wanted == 0

if recovering and tonumber(redis.call('ZSCORE', workers, worker) or 0) > now then return {'alive', -1, now, {}, {}} end
-- The first write needs no memory, so a full Redis refuses no later one. With results it is SREM.
if count == 0 then redis.call('PEXPIRE', KEYS[19], duration) end
-- Keys that most queues do not have are checked by one command, because a command costs more than leasing a job.
local rare = redis.call('EXISTS', counts, state, retrying, cancels, notes, KEYS[18], KEYS[20]) > 0

-- include: formats

-- Defining a function takes as long as a command, and longer if it uses many variables from outside. So the code that
-- most calls need stands in line, and functions are defined only where they are needed.
local answers, returned, taken, signals, is_blocked, letters = '', {}, {}, {}, false, {}
if count > 0 then
  -- include: close
end
local full = redis.call('HLEN', finished) >= tonumber(ARGV[5])
local paused = rare and redis.call('EXISTS', KEYS[18]) == 1
local next_due = rare and redis.call('ZRANGE', retrying, 0, 0, 'WITHSCORES')[2] or nil
if recovering then
  if redis.call('EXISTS', held) == 0 then
    redis.call('ZREM', workers, worker)
    redis.call('HDEL', KEYS[12], worker)
  end
else
  redis.call('ZADD', workers, now + duration, worker)
  if ARGV[9] ~= '' then
    -- include: attempts/begun
    set_begun(KEYS[12], worker, ARGV[9])
  end
  if wanted > 0 and not full and not paused then
    -- include: lease
    local function has_room(most)
      return #taken / 3 < wanted and bytes < (most or MAX_BYTES) and #aside / 4 < MOVES
    end
    if next_due and tonumber(next_due) <= now then
      -- include: enqueue
      -- include: promote
    end
    local candidates = {}
    is_blocked = rare and redis.call('EXISTS', counts) == 1
    if is_blocked then
      -- include: candidates
    end
    if place or #candidates > 0 then
      -- include: discount
      -- include: parked
      -- include: levels
    else -- no parked job competes: the order of the scores is that of the levels
      while has_room() do
        local most = math.min(CHUNK, wanted - #taken / 3, MOVES - #aside / 4)
        local found = redis.call('ZPOPMIN', waiting, most)
        if #found > 0 then admit(found) end
        if #found < 2 * most then break end
      end
    end
    for level, score in pairs(top) do
      redis.call('ZADD', turns, 'GT', score, level)
      if math.floor(sequence / SWEEP) > math.floor((ARGV[8] - 1) / SWEEP) then
        redis.call('ZREMRANGEBYSCORE', turns, level * SPAN, string.format('(%.0f', score))
      end
    end
    restless = restless or #taken > 0
    if #aside > 0 then
      -- include: block
    end
  end
end
if #returned > 0 then redis.call('ZADD', waiting, unpack(returned)) end -- not earlier: this call must not lease them
for _, letter in ipairs(letters) do
  redis.call('LPUSH', dead, letter[1])
  if letter[2] ~= '' then redis.call('HSET', reasons, redis.sha1hex(letter[1]), letter[2]) end
end
while #letters > 0 and redis.call('LLEN', dead) > tonumber(ARGV[6]) do
  redis.call('HDEL', reasons, redis.sha1hex(redis.call('RPOP', dead)))
end
local wait = next_due and math.max(0, next_due - now) or -1
if is_blocked then wait = wait < 0 and POLL or math.min(wait, POLL) end
if full or paused then
  wait = full and 100 or -1 -- resuming the queue wakes its workers
else
  local both = redis.call('EXISTS', waiting, marker)
  local has_waiting = both == 2 or both == 1 and redis.call('EXISTS', waiting) == 1
  if both < 2 and (has_waiting or restless and next_due and both == 0) then redis.call('LPUSH', marker, '1') end
  if count > 0 and not has_waiting and redis.call('EXISTS', jobs) == 0 then redis.call('PEXPIRE', turns, 0) end
end
return {answers, wait, now, signals, newer_formats(), unpack(taken)}
