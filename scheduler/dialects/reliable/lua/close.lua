-- Part of finish: end deliveries.
-- ARGV[13..] 5 values for each: id; verb:delay:ledger:uncharged:previous:feed:attempt@started:sequence, or
-- +ledger:feed:attempt@started:sequence if it completed; entry; level and entry to go on with, or why it is dead;
-- length of its end, 0: none. Verbs: completed, dead, cancelled, retry, back, redeliver (back, of an orphaned lease),
-- later (back with a delay, before the handler was called), drop, unreadable. The delay is in ms; of what goes back, it
-- is the attempts so far. Ledgers count from 1, 0: none. uncharged: how many attempts are not charged, and previous:
-- the id of the last one, or empty; without `uncharged` both are as before. uncharged of `later`: the delay in ms;
-- empty: it grows, because the worker has no handler. A feed after ~: a worker of the original took it. The sequence
-- number tells the lease from a later lease of the same worker on the same attempt.
local over, tombs, told_to, good, bad, closed, refused, handled = {}, {}, {}, {}, {}, {}, {}, {}

local function kill(entry, reason)
  bad[#bad + 1] = entry
  if reason ~= '' then redis.call('HSET', reasons, redis.sha1hex(entry), reason) end
end

local function close_one(id, token, verb, entry, delay, again, ledger, uncharged, previous)
  if verb ~= 'later' then handled[#handled + 1] = id end
  if verb ~= 'later' and (uncharged or '') ~= '' then
    local orphaned = verb == 'redeliver' and '1' or taking_back and '2' or '0'
    set_returned(KEYS[23], id, string.match(token, '^%d+'), uncharged, orphaned, previous)
  end
  if verb == 'later' then
    local due = return_later(KEYS[21], id, tonumber(uncharged))
    restless, returned[id] = true, true
    redis.call('ZADD', retries, due, again)
    redis.call('HDEL', attempts, id)
    if ledger > 0 then redis.call('HSET', between, id, string.match(token, '^%d+') .. ':' .. delay .. ':' .. due) end
  elseif verb == 'back' or verb == 'redeliver' then
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
      told_to[#tombs] = ledger
    end
  end
end

local function write()
  if #over > 0 then
    redis.call('HDEL', jobs, unpack(over))
    redis.call('HDEL', attempts, unpack(over))
    if redis.call('EXISTS', between, cancels, notes, KEYS[23]) > 0 then -- mostly there is none of them
      for _, key in ipairs({between, cancels, notes, KEYS[23]}) do redis.call('HDEL', key, unpack(over)) end
    end
  end
  forget_returns(KEYS[21], handled)
  local entries = tell()
  for i = 2, #tombs, 2 do tombs[i] = tombs[i] .. ':' .. entries[told_to[i]] end
  if #tombs > 0 then redis.call('HSET', finished, unpack(tombs)) end
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

-- The entry that was let go of may be that of a lease which this worker has now, after the one that is refused: then it
-- stays, or nobody would find the job if the worker died. It is that one if no other entry of the job is left.
local function keep(held)
  if #refused == 0 then return end
  local left = {}
  for _, entry in ipairs(redis.call('LRANGE', processing, 0, -1)) do
    left[string.match(entry, '"id": ?"([^"]+)"') or ''] = true
  end
  for _, i in ipairs(refused) do
    local id = ARGV[5 * i + 8]
    if not left[id] and not closed[id] and string.find(held[i], by_worker, 1, true) then
      redis.call('LPUSH', processing, ARGV[5 * i + 10])
      left[id] = true
    end
  end
end

local function close()
  local ids = {}
  for i = 1, count do ids[i] = ARGV[5 * i + 8] end
  local held = redis.call('HMGET', attempts, unpack(ids))
  local here = let_go()
  local ours_only = redis.call('ZSCORE', workers, worker) -- nobody of the original has a place there
  for i, id in ipairs(ids) do
    local head, entry, again, ended = ARGV[5 * i + 9], ARGV[5 * i + 10], ARGV[5 * i + 11], ARGV[5 * i + 12] ~= '0'
    local verb, delay, ledger, token, lease_end, uncharged, previous = read(head)
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
      close_one(id, token, verb, entry, delay, again, ledger, uncharged, previous)
    end
    if ended then told[ledger] = told[ledger] ~= false and answer[i] == '1' end
  end
  keep(held)
  write()
  return table.concat(answer)
end
