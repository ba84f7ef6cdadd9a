-- Part of finish: end deliveries.
-- ARGV[12..] 5 values for each: id; verb:delay:ledger:feed:attempt@started:sequence, or
-- +ledger:feed:attempt@started:sequence if it completed; entry; level and entry to go on with, or why it is dead;
-- length of its end, 0: none. Verbs: completed, dead, cancelled, retry, back, later (back with a delay, because the
-- worker has no handler), drop, unreadable. The delay is in ms; for back and later, it is the attempts before. Ledgers
-- count from 1, 0: none. A feed after ~: a worker of the original took it. The sequence number tells the lease from a
-- later lease of the same worker on the same attempt.
local over, tombs, good, bad, closed, refused, handled = {}, {}, {}, {}, {}, {}, {}

local function kill(entry, reason)
  bad[#bad + 1] = entry
  if reason ~= '' then redis.call('HSET', reasons, redis.sha1hex(entry), reason) end
end

local function close_one(id, token, verb, entry, delay, again, ledger)
  if verb ~= 'later' then handled[#handled + 1] = id end
  if verb == 'later' then
    local due = return_later(KEYS[21], id)
    restless, returned[id] = true, true
    redis.call('ZADD', retries, due, again)
    redis.call('HDEL', attempts, id)
    if ledger > 0 then redis.call('HSET', between, id, string.match(token, '^%d+') .. ':' .. delay .. ':' .. due) end
  elseif verb == 'back' then
    backs[#backs + 1], returned[id] = again, true
    redis.call('HDEL', attempts, id)
    if ledger > 0 and delay > 0 then
      redis.call('HSET', between, id, string.match(token, '^%d+') .. ':' .. delay .. ':0')
    end
  elseif verb == 'retry' then
    restless = true
    redis.call('ZADD', retries, now + delay, again)
    redis.call('HDEL', attempts, id)
    if ledger > 0 then redis.call('HSET', between, id, token .. ':' .. now + delay) end
  else
    over[#over + 1] = id
    if verb == 'completed' then good[#good + 1] = entry end
    if verb == 'dead' then kill(entry, again) end
    if ledger > 0 then
      tombs[#tombs + 1] = id
      tombs[#tombs + 1] = token
    end
  end
end

local function write()
  if #over > 0 then
    for _, key in ipairs({jobs, attempts, between, cancels, notes}) do
      if redis.call('EXISTS', key) == 1 then redis.call('HDEL', key, unpack(over)) end
    end
  end
  forget_returns(KEYS[21], handled)
  if #tombs > 0 then redis.call('HSET', finished, unpack(tombs)) end
  tell()
  if #bad > 0 then redis.call('LPUSH', dead, unpack(bad)) end
  if #good > 0 then
    redis.call('LPUSH', completed, unpack(good))
    redis.call('LTRIM', completed, 0, kept - 1)
    redis.call('PEXPIRE', completed, ARGV[7])
  end
end

local by_worker = ':' .. worker .. ':'

-- It may have no id, or that of another job: that one is left alone.
local function bury_unread(id, held, entry, reason)
  kill(entry, reason)
  if held and string.find(held, by_worker, 1, true) then over[#over + 1] = id end
end

-- The entry that was let go of may be that of the lease which this worker has on the same attempt now, after Redis
-- forgot the one that is refused: it stays, once, or nobody would find the job if the worker died.
local function keep(held)
  for _, i in ipairs(refused) do
    local id, entry, _, _, _, token = ARGV[5 * i + 7], ARGV[5 * i + 9], read(ARGV[5 * i + 8])
    local same = string.match(held[i], '^%d+:(%d+)') == string.match(token, ':(%d+)$')
    if same and string.find(held[i], by_worker, 1, true) and not closed[id] then
      redis.call('LREM', processing, 1, entry)
      redis.call('LPUSH', processing, entry)
    end
  end
end

local function close()
  local ids = {}
  for i = 1, count do ids[i] = ARGV[5 * i + 7] end
  local held = redis.call('HMGET', attempts, unpack(ids))
  local here = let_go()
  local ours_only = redis.call('ZSCORE', workers, worker) -- nobody of the original has a place there
  for i, id in ipairs(ids) do
    local head, entry, again, ended = ARGV[5 * i + 8], ARGV[5 * i + 9], ARGV[5 * i + 10], ARGV[5 * i + 11] ~= '0'
    local verb, delay, ledger, token, lease_end = read(head)
    local ours = held[i] == token .. by_worker .. lease_end
    if string.sub(token, 1, 1) == '~' then
      token = string.sub(token, 2)
      ours = here[i] and not held[i] and not ours_only
    end
    if verb == 'unreadable' then
      answer[i] = here[i] and '1' or '0'
      if here[i] then bury_unread(id, held[i], entry, again) end
    elseif closed[id] or not ours then
      answer[i] = '0'
      if here[i] and held[i] then refused[#refused + 1] = i end
    else
      answer[i], closed[id] = '1', true
      close_one(id, token, verb, entry, delay, again, ledger)
    end
    if ended then told[ledger] = told[ledger] ~= false and answer[i] == '1' end
  end
  keep(held)
  write()
  return table.concat(answer)
end
