-- Say what is known of jobs.
-- KEYS[1] hash: jobs, id -> record
-- KEYS[2] hash: attempts, id -> feed:attempt:worker:started:sequence of what a worker has
-- KEYS[3] hash: between, id -> feed:attempts:due of what waits between two attempts
-- KEYS[4] hash: finished, id -> feed:attempt:stream entry of an end that is not settled
-- KEYS[5] hash: notes, id -> what its handler said
-- KEYS[6] stream: outcomes of the ledger
-- ARGV[1..] ids
-- Returns 3 values for each: u (unknown), f (finished), r (running), b (before a retry is due) or w (waits);
-- feed:attempt and so on, or empty; its note, or empty
local jobs, attempts, between, finished, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local answer, outcomes = {}, KEYS[6]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- include: settling/has_result

local function add(where, token, id)
  answer[#answer + 1] = where
  answer[#answer + 1] = token
  answer[#answer + 1] = redis.call('HGET', notes, id) or ''
end
for _, id in ipairs(ARGV) do
  local over, held = redis.call('HGET', finished, id), redis.call('HGET', attempts, id)
  local waits = redis.call('HGET', between, id)
  if over and has_result(over) then
    add('f', over, id)
  elseif held then
    add('r', held, id)
  elseif redis.call('HEXISTS', jobs, id) == 0 then
    add('u', '', id)
  elseif waits and now < (tonumber(string.match(waits, '^%d+:[1-9]%d*:(%d+)$')) or 0) then
    add('b', waits, id)
  else
    add('w', waits or '', id)
  end
end
return answer
