-- Say what is known of jobs.
-- KEYS[1] zset: scheduled; the names of all other keys begin as this does
-- ARGV[1] names: seed or upstream
-- ARGV[2] queue
-- ARGV[3] installation: whose ends they are
-- ARGV[4..] uuids
-- Returns 3 values for each: u (unknown), f (finished), r (running), b (before a retry is due) or w (waits);
-- feed:attempt and so on, or empty; its note, or empty
-- include: names
-- include: holding
local ring, answer = ring_of(ARGV[2]), {}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local outcomes = ring .. 'outcomes:' .. ARGV[3]
-- include: settling/has_result
local function add(where, token, uuid)
  answer[#answer + 1] = where
  answer[#answer + 1] = token
  answer[#answer + 1] = redis.call('HGET', ring .. 'notes', uuid) or ''
end
local function is_ours(uuid, lease)
  local owner = string.match(lease, '^%d+:%d+:(.*):%d+:%d+$')
  return owner and redis.call('SISMEMBER', held_by(owner), uuid) == 1
end
for i = 4, #ARGV do
  local uuid = ARGV[i]
  local over, lease = redis.call('HGET', ring .. 'finished', uuid), redis.call('HGET', ring .. 'attempts', uuid)
  local known = redis.call('HGET', ring .. 'jobs', uuid)
  if over and has_result(over) then
    add('f', over, uuid)
  elseif lease and (is_ours(uuid, lease) or is_held(uuid)) then
    add('r', lease, uuid)
  elseif lease or not known then
    add('u', '', uuid) -- others took it from us, and say nothing of it
  else
    local retries = not string.find(known, ':0$') and redis.call('ZSCORE', ring .. 'retries', uuid)
    add(retries and now < tonumber(retries) and 'b' or 'w', known, uuid)
  end
end
return answer
