-- Let failed jobs run again, each if it is still among them, with all their attempts.
-- KEYS[1] hash: meta of the queue; the names of its other keys, and of parents in other queues, share their beginning
-- ARGV[1] compat: auto, 5 or 6
-- ARGV[2..] ids
-- Returns 1 or 0 for each
local base, compat = string.sub(KEYS[1], 1, -5), ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- include: queue

-- A parent that waited for it does so again; one that has gone on does not come back.
local function wait_again(key, parent)
  if redis.call('EXISTS', parent) == 0 then return end
  local was = redis.call('ZREM', parent .. ':unsuccessful', key) + redis.call('HDEL', parent .. ':failed', key)
  if was > 0 then redis.call('SADD', parent .. ':dependencies', key) end
end

local function goes_first(opts)
  local read, options = pcall(cjson.decode, opts or '{}')
  return read and type(options) == 'table' and options.lifo == true
end

local answer = {}
for i = 2, #ARGV do
  local key = base .. ARGV[i]
  local read = redis.call('HMGET', key, 'name', 'priority', 'parentKey', 'opts')
  local there = read[1] and redis.call('ZREM', base .. 'failed', ARGV[i]) == 1
  answer[#answer + 1] = there and '1' or '0'
  if there then
    redis.call('HDEL', key, 'finishedOn', 'processedOn', 'failedReason', 'atm', 'ats')
    if read[3] then wait_again(key, read[3]) end
    put(base, ARGV[i], tonumber(read[2]) or 0, goes_first(read[4]))
    say(base, 'waiting', 'jobId', ARGV[i], 'prev', 'failed')
  end
end
tell()
return table.concat(answer)
