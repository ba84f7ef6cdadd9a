-- Take jobs out, and ask for the end of those that workers of ours have, or by force take out what any worker has.
-- Or withdraw one job: remove it if none of its attempts has begun that the ledger does not have, and refuse late
-- pushes of its feed for a while.
-- A worker of ours whose lease was taken away learns it from its next renewal, and its result is refused. A worker of
-- others runs to its end, and nothing of that is recorded. If it tries the job again, ours drop the entry they meet.
-- KEYS[1] zset: scheduled; the names of all other keys begin as this does
-- ARGV[1] names: seed or upstream
-- ARGV[2] queue
-- ARGV[3] installation: whose ends they are
-- ARGV[4] force, or withdraw:feed:attempts:ms (the attempts in the ledger, and for how long late pushes are
-- refused); empty: leave the jobs that workers have to them
-- ARGV[5..] uuids
-- Returns for each d (removed; its entry is dropped when it is met), r (running), f (finished, not settled), x (a
-- worker of others has it, and cannot be told) or u (unknown)
-- include: names
-- include: holding
local ring, force, answer = ring_of(ARGV[2]), ARGV[4] == 'force', {}
local outcomes = ring .. 'outcomes:' .. ARGV[3]
-- include: settling/has_result
-- include: settling/remember
local withdrawn, recorded, while_ = string.match(ARGV[4], '^withdraw:(%d+):(%d+):(%d+)$')

-- Returns whether a job has attempts that the ledger does not have.
local function is_ahead(uuid)
  local attempts = string.match(redis.call('HGET', ring .. 'jobs', uuid) or '', '^%d+:(%d+)')
  return tonumber(attempts or 0) > tonumber(recorded)
end

-- Removes the lease of one of ours, with the body. What a worker of others has is left to it.
local function fence(uuid)
  local lease = redis.call('HGET', ring .. 'attempts', uuid)
  local owner = lease and string.match(lease, '^%d+:%d+:(.*):%d+:%d+$')
  if owner then redis.call('SREM', held_by(owner), uuid) end
  if not lease or is_held(uuid) then return end
  redis.call('SREM', active, uuid)
  redis.call('DEL', bodies .. uuid)
end

for i = 5, #ARGV do
  local uuid, found = ARGV[i], 'u'
  local mark = redis.call('HGET', ring .. 'finished', uuid)
  local leased = redis.call('HEXISTS', ring .. 'attempts', uuid) == 1
  if mark and has_result(mark) then
    found = 'f'
  elseif leased and not force then
    if not withdrawn then redis.call('HSET', ring .. 'cancels', uuid, '1') end
    found = 'r'
  elseif not force and redis.call('SISMEMBER', active, uuid) == 1 and is_held(uuid) then
    found = 'x'
  elseif withdrawn and is_ahead(uuid) then
    found = 'r'
  elseif redis.call('HDEL', ring .. 'jobs', uuid) == 1 or leased then
    fence(uuid)
    for _, name in ipairs({'attempts', 'cancels', 'notes', 'returned'}) do redis.call('HDEL', ring .. name, uuid) end
    for _, name in ipairs({'retries', 'unhandled'}) do redis.call('ZREM', ring .. name, uuid) end
    found = 'd'
  elseif mark then
    redis.call('HDEL', ring .. 'finished', uuid)
  end
  answer[#answer + 1] = found
end
if withdrawn and (answer[1] == 'd' or answer[1] == 'u') then
  remember(ring .. 'settled', ring .. 'settled:before', tonumber(while_), {ARGV[5], withdrawn})
end
return table.concat(answer)
