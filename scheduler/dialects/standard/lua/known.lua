-- Return the status of jobs.
-- KEYS[1] hash: jobs, id -> record
-- KEYS[2] hash: leases, id -> lease
-- KEYS[3] hash: state, id -> blocked, retrying, or waiting with the counts of earlier attempts
-- KEYS[4] hash: finished, id -> mark of a result that is not settled
-- KEYS[5] hash: notes, id -> progress
-- KEYS[6] stream: results of the ledger
-- ARGV[1..] ids
-- Returns {numbers of newer formats; 4 values for each id: u (unknown), f (finished), l (leased), r (retrying) or
-- w (waiting); mark, lease or state, or empty; progress or empty; when it was pushed, or empty}
local jobs, leases, state, finished, notes, results = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

-- include: formats
-- include: has_result

local MAX_BYTES = 64 * 1024 -- of a record that is read for its time: a larger payload is not copied
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function pushed_at(id)
  if redis.call('HSTRLEN', jobs, id) > MAX_BYTES then return '' end
  local record = redis.call('HGET', jobs, id) or ''
  local length, first = string.match(record, '^1:%d+:%d+:%d+:(%d+):()')
  local read, head = pcall(cjson.decode, length and string.sub(record, first, first + length - 1) or '')
  local rare = read and type(head) == 'table' and head[7]
  return type(rare) == 'table' and rare.scheduled_at or ''
end

local marks, leased = redis.call('HMGET', finished, unpack(ARGV)), redis.call('HMGET', leases, unpack(ARGV))
local states, progress = redis.call('HMGET', state, unpack(ARGV)), redis.call('HMGET', notes, unpack(ARGV))
local answer = {0}
for i, id in ipairs(ARGV) do
  local where, value, pushed = 'u', '', ''
  local lease = leased[i] or ''
  if newer_format(lease) or string.find(lease, '^1:%d+:%d+:%d+:%d:[^:]*:[^:]*:%d+:%d+:%d+$') then
    where, value = 'l', leased[i]
    if string.find(lease, ':1:%d+$') then pushed = pushed_at(id) end -- the first attempt
  elseif marks[i] and has_result(marks[i]) then
    where, value = 'f', marks[i]
  elseif not leased[i] and redis.call('HEXISTS', jobs, id) == 1 then
    local due = tonumber(string.match(states[i] or '', '^%d+:retrying:.*:(%d+)$'))
    where, value = due and due > now and 'r' or 'w', states[i] or ''
    if not states[i] then pushed = pushed_at(id) end
  end
  answer[#answer + 1] = where
  answer[#answer + 1] = value
  answer[#answer + 1] = progress[i] or ''
  answer[#answer + 1] = pushed
end
answer[1] = newer_formats()
return answer
