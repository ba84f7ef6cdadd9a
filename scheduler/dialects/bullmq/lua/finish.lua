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
-- ARGV[9..] 7 values for each result, as `end` reads them
-- Returns {1 or 0 for each result; ms until one should look again or -1; now in ms; {of each that was taken what `job`
-- tells}}
local base, worker, lease, wanted = string.sub(KEYS[1], 1, -5), ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local taking_back, compat, count = ARGV[4] == 'dead', ARGV[6], tonumber(ARGV[7])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- include: queue
-- include: parents
-- include: store
-- include: job
-- include: close
-- include: end
-- include: take

local function drained()
  if facts(base).paused then return false end
  return redis.call('EXISTS', base .. 'wait', base .. 'active', base .. 'prioritized', base .. 'delayed') == 0
end

local answer, told = end_all(), {}
write()
local full = redis.call('HLEN', base .. 'ring:finished') >= tonumber(ARGV[5])
if wanted > 0 then
  gather()
  promote()
  local left = full and 0 or allowed()
  while left > 0 and bytes < MOST_BYTES do
    local ids, scores = next_ids(math.min(CHUNK, left))
    if #ids == 0 then break end
    local begun = begin_all(told, ids, scores)
    left = left - begun
    local limit = facts(base)
    if limit.max and begun > 0 and redis.call('INCRBY', base .. 'limiter', begun) == begun then
      redis.call('PEXPIRE', base .. 'limiter', math.floor(limit.duration or 1000))
    end
    write() -- what had failed before it was taken, however many
  end
end
if concluded and drained() then say(base, 'drained') end
-- Who came for jobs alone may have been woken: it does not wait any more, and another shall look. Who ends some and
-- takes as many leaves things as they were, unless there is a limit on how many are active.
local leaves = count == 0 and (#told > 0 or ARGV[8] == 'wake') or count > 0 and (wanted == 0 or facts(base).most)
if leaves then
  ready[base] = redis.call('EXISTS', base .. 'wait', base .. 'prioritized') > 0 or ready[base]
  later[base] = true
end
tell()
if full then return {answer, 100, now, told} end
if pause < 0 and not facts(base).paused then
  local first = redis.call('ZRANGE', base .. 'delayed', 0, 0, 'WITHSCORES')[2]
  if first then pause = math.max(0, math.floor(first / SEQUENCE) - now) end
end
return {answer, pause, now, told}
