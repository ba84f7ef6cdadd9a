-- Say what is known of jobs.
-- KEYS[1] hash: jobs, id -> record
-- KEYS[2] hash: attempts, id -> feed:attempt:worker:started
-- KEYS[3] hash: finished, id -> feed:attempt of an end that is not settled
-- KEYS[4] hash: notes, id -> what its handler said
-- ARGV[1..] ids
-- Returns 3 values for each: u (unknown), f (finished) or w (here); its entry of attempts, or empty; its note, or empty
local jobs, attempts, finished, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local answer = {}
local function add(...)
  for _, value in ipairs({...}) do answer[#answer + 1] = value end
end
for _, id in ipairs(ARGV) do
  if redis.call('HEXISTS', finished, id) == 1 then
    add('f', redis.call('HGET', finished, id), '')
  elseif redis.call('HEXISTS', jobs, id) == 1 then
    add('w', redis.call('HGET', attempts, id) or '', redis.call('HGET', notes, id) or '')
  else
    add('u', '', '')
  end
end
return answer
