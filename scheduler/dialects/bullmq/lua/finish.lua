-- End deliveries of a worker, each if its lock is still that worker's, and take the next jobs.
-- KEYS[1] hash: meta of the queue; the names of all other keys begin as this does, also those of parents elsewhere
-- ARGV[1] worker
-- ARGV[2] lease, in ms
-- ARGV[3] how many to take
-- ARGV[4] live, or dead: another takes back what a silent worker holds
-- ARGV[5] most unsettled ends
-- ARGV[6] compat: auto, 5 or 6
-- ARGV[7] number of results
-- ARGV[8] wake, if those who wait should look again; or empty
-- ARGV[9] sequence number of the first lease; the next leases get the next numbers
-- ARGV[10] JSON object of types and how many jobs of each may be leased; empty: any number of any type
-- ARGV[11] mark of the leases that have begun; empty: not reported
-- ARGV[12..] 7 values for each result, as `end` reads them
-- Returns {1 or 0 for each result; ms until one should look again or -1; now in ms; {of each that was taken what `job`
-- tells}; how many jobs of full types were passed over}
local base, worker, lease, wanted = string.sub(KEYS[1], 1, -5), ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local taking_back, compat, count = ARGV[4] == 'dead', ARGV[6], tonumber(ARGV[7])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- include: queue
-- include: parents
-- include: store
-- include: job
-- include: unhandled/delay
-- include: close
-- include: end
-- include: take
-- include: begun

local function drained()
  if facts(base).paused then return false end
  return redis.call('EXISTS', base .. 'wait', base .. 'active', base .. 'prioritized', base .. 'delayed') == 0
end

local answer, told = end_all(), {}
write()
set_begun(ARGV[11])
local full = redis.call('HLEN', base .. 'ring:finished') >= tonumber(ARGV[5])
if wanted > 0 then
  gather()
  promote()
  local room = full and 0 or allowed()
  while room > 0 and bytes < MOST_BYTES and passed <= MOST_PASSED do
    -- The more jobs were passed over, the more are read at once: a worker may have one slot free.
    local ids, scores = next_ids(math.min(CHUNK, math.max(room, passed)))
    if #ids == 0 then break end
    local begun = begin_all(told, ids, scores, room)
    room = room - begun
    local limit = facts(base)
    if limit.max and begun > 0 and redis.call('INCRBY', base .. 'limiter', begun) == begun then
      redis.call('PEXPIRE', base .. 'limiter', math.floor(limit.duration or 1000))
    end
    write() -- what had failed before it was taken, however many
  end
  restore()
end
put_back()
if concluded and drained() then say(base, 'drained') end
-- A worker that takes jobs, with results or without, may have received the marker: it does not wait any more, and
-- another shall look. A worker that only ends jobs makes room if there is a limit on how many are active. For jobs that
-- were passed over another worker may have a slot. This worker does not wait for the marker then, or it would get the
-- one that it has just set (`NextLook`).
local leaves = #told > 0 or passed > 0 or ARGV[8] == 'wake'
leaves = leaves or count > 0 and (wanted == 0 or facts(base).most)
if leaves then
  ready[base] = redis.call('EXISTS', base .. 'wait', base .. 'prioritized') > 0 or ready[base]
  later[base] = true
end
tell()
if full then return {answer, 100, now, told, passed} end
if pause < 0 and not facts(base).paused then
  local first = redis.call('ZRANGE', base .. 'delayed', 0, 0, 'WITHSCORES')[2]
  if first then pause = math.max(0, math.floor(first / SEQUENCE) - now) end
end
return {answer, pause, now, told, passed}
