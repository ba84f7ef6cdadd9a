-- End deliveries of a worker, each if its lease is still that worker's, and take the next jobs.
-- KEYS[1] list: level critical
-- KEYS[2] list: level high
-- KEYS[3] list: level normal
-- KEYS[4] list: level low
-- KEYS[5] list: level bulk
-- KEYS[6] list: what the worker holds
-- KEYS[7] string: the worker's heartbeat
-- KEYS[8] hash: jobs, id -> record
-- KEYS[9] hash: attempts, id -> feed:attempt:worker:started:sequence of what a worker has
-- KEYS[10] hash: between, id -> feed:attempts:due of what waits between two attempts; due in ms, 0: in its list
-- KEYS[11] zset: retries, level and entry by when they are due, in ms
-- KEYS[12] hash: finished, id -> feed:attempt:stream entry of an end that is not settled
-- KEYS[13] zset: workers by when they are silent, in ms
-- KEYS[14] list: marker, for those who wait
-- KEYS[15] list: dead letters
-- KEYS[16] hash: reasons, hash of an entry -> why it is a dead letter
-- KEYS[17] list: completed
-- KEYS[18] hash: cancels, ids that somebody wants to end
-- KEYS[19] hash: notes, id -> what its handler said
-- KEYS[20] hash: paused, by which ledgers
-- KEYS[21] zset: unhandled, ids of jobs that were returned because a worker had no handler
-- KEYS[22] hash: begun, worker -> mark of the leases that have begun
-- KEYS[23] hash: returned, id -> what is known of the attempts before, see `attempts/returned`
-- KEYS[24] stream: outcomes of the first ledger; more ledgers follow
-- ARGV[1] worker
-- ARGV[2] lease, in ms
-- ARGV[3] how many to take
-- ARGV[4] live, or dead: another takes back what a silent worker holds
-- ARGV[5] most unsettled ends
-- ARGV[6] most entries kept in completed and in dead letters
-- ARGV[7] how long completed is kept, in ms
-- ARGV[8] the place among 31 after which levels have their shares, or empty: higher levels first
-- ARGV[9] sequence number of the first lease; the next leases get the next numbers
-- ARGV[10] JSON object of types and how many jobs of each may be leased; empty: any number of any type
-- ARGV[11] mark of the leases that have begun; empty: not reported
-- ARGV[12] number of results
-- ARGV[13..] 5 values for each result, then the ends for each ledger, as `close` and `tell` read them
-- Returns {1 or 0 for each result, or "alive"; ms until one should look again or -1; now in ms; how many jobs of full
-- types were passed over; of each that was taken entry, record, attempt, and empty or
-- uncharged:orphaned:previous:note}
local processing, heartbeat, jobs, attempts, between = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local retries, finished, workers, marker = KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local dead, reasons, completed, cancels, notes = KEYS[15], KEYS[16], KEYS[17], KEYS[18], KEYS[19]
local worker, lease, wanted, kept = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[6])
local taking_back, place, count = ARGV[4] == 'dead', tonumber(ARGV[8]), tonumber(ARGV[12])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Whether one of those who wait should learn when the next retry is due: so when somebody who was told does not look.
local restless = count == 0 and wanted == 0

if taking_back and redis.call('EXISTS', heartbeat) == 1 then return {'alive', -1, now, 0} end
-- The first write asks for no memory: so a full Redis refuses what is pushed, and neither work nor its end.
local beats = redis.call('PEXPIRE', heartbeat, lease) == 1

-- What is not needed is not defined: that alone took a quarter of the time when a worker takes one job.
local answers, buries, taken, passed = '', count > 0, {}, 0
local backs, returned = {}, {} -- level and entry of the jobs that are put back; their ids
if count > 0 then
  -- include: let_go
  -- include: tell
  -- include: unhandled/delay
  -- include: attempts/returned
  -- include: close
  answers = close()
end
local full = redis.call('HLEN', finished) >= tonumber(ARGV[5])
local paused = redis.call('EXISTS', KEYS[20]) == 1
local next_retry = redis.call('ZRANGE', retries, 0, 0, 'WITHSCORES')[2]
if taking_back then
  if redis.call('EXISTS', processing) == 0 then
    redis.call('ZREM', workers, worker)
    redis.call('HDEL', KEYS[22], worker)
  end
else
  if not beats then redis.call('SET', heartbeat, now, 'PX', lease) end
  redis.call('ZADD', workers, now + lease, worker)
  if ARGV[11] ~= '' then
    -- include: attempts/begun
    set_begun(KEYS[22], worker, ARGV[11])
  end
  if wanted > 0 and not full and not paused then
    local MOST_PASSED = 100 -- jobs of full types that a call looks past
    local free, left, is_leasable, restore = ARGV[10] ~= '' and cjson.decode(ARGV[10]), {}, nil, nil
    if free then
      -- include: limits
    end
    -- include: attempts/returned_of
    -- include: take
    -- include: choose
    taken = take()
  end
end
-- Put-backs come after the fetch, which does not lease them. The first of them is the next to be leased.
for i = #backs, 1, -1 do
  redis.call('RPUSH', KEYS[tonumber(string.sub(backs[i], 1, 1))], string.sub(backs[i], 2))
end
while buries and redis.call('LLEN', dead) > kept do
  redis.call('HDEL', reasons, redis.sha1hex(redis.call('RPOP', dead)))
end
if full or paused then return {answers, full and 100 or -1, now, passed, unpack(taken)} end -- who resumes it wakes them
-- Whoever took the marker has looked; if there is more, the next of those who wait shall look. Who leaves with jobs
-- does not wait for retries any more: another shall. So it is with jobs that were passed over: another worker may have
-- a slot for them. This worker does not wait for the marker then, or it would get the one that it has just set
-- (`NextLook`).
if restless and next_retry or redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]) > 0 then
  if redis.call('LLEN', marker) == 0 then redis.call('LPUSH', marker, '1') end
end
return {answers, next_retry and math.max(0, next_retry - now) or -1, now, passed, unpack(taken)}
