-- Part of finish: end deliveries, each if it is still the worker's.
-- ARGV[13..] 5 values for each: uuid; verb:delay:uncharged:previous:feed:attempt:started:sequence:parent; whose ledger
-- it is in, or empty; bytes to go on with, or for failed, or empty; end as JSON, or empty. Verbs: completed, dead,
-- cancelled, retry, back, redeliver (back, of an orphaned lease), later (back with a delay, before the handler was
-- called), unreadable. The delay is in ms; of what goes back, it is the attempts so far. uncharged: how many attempts
-- are not charged, and previous: the id of the last one, or empty; without `uncharged` both are as before. uncharged of
-- `later`: the delay in ms; empty: it grows, because the worker has no handler. The sequence number tells the lease
-- from a later lease of the same worker on the same attempt.
local backs, ends, tombs, ended, unleased, handled = {}, {}, {}, {}, {}, {}

-- Put-backs come after the fetch, which does not lease them. The first of them is the next to be leased.
local function put_back()
  if #backs == 0 then return end
  for i = #backs, 1, -1 do
    local job = backs[i]
    if not try('RPUSH', list_of(job.queue, job.priority), job.raw) then fail(job, job.raw) end
  end
  erase()
end

local function count_attempts(uuid, token, attempts)
  if redis.call('HEXISTS', ring .. 'jobs', uuid) == 0 then return end
  redis.call('HSET', ring .. 'jobs', uuid, string.match(token, '^%d+') .. ':' .. attempts)
end

local function end_one(job, verb, delay, token, uncharged, previous, ledger, raw)
  local uuid = job.uuid
  if verb ~= 'later' then handled[#handled + 1] = uuid end
  if verb ~= 'later' and uncharged ~= '' then
    local orphaned = verb == 'redeliver' and '1' or taking_back and '2' or '0'
    set_returned(ring .. 'returned', uuid, string.match(token, '^%d+'), uncharged, orphaned, previous)
  end
  if verb == 'later' then
    local body, due = try('GET', bodies .. uuid), return_later(ring .. 'unhandled', uuid, tonumber(uncharged))
    if body then
      redis.call('ZADD', scheduled, seconds(due), body)
      redis.call('ZADD', ring .. 'retries', due, uuid)
    end
    forget(uuid)
    count_attempts(uuid, token, delay)
  elseif verb == 'back' or verb == 'redeliver' then
    local body = try('GET', bodies .. uuid)
    backs[#backs + 1] = body and read(body) or nil
    forget(uuid)
    count_attempts(uuid, token, delay)
  elseif verb == 'retry' then
    redis.call('ZADD', scheduled, seconds(now + delay), raw)
    redis.call('ZADD', ring .. 'retries', now + delay, uuid)
    say(raw, FAILED)
    forget(uuid)
    count_attempts(uuid, token, string.match(token, '%d+$'))
  else
    ended[#ended + 1] = uuid
    if verb == 'completed' then
      say(listened and try('GET', bodies .. uuid), COMPLETED)
      close(job)
    else
      say(raw ~= '' and raw or listened and try('GET', bodies .. uuid), FAILED)
      fail(job, raw)
    end
    if ledger ~= '' then
      tombs[#tombs + 1] = {uuid, token, ledger}
    end
  end
end

local function write()
  if #unleased > 0 then redis.call('HDEL', ring .. 'attempts', unpack(unleased)) end
  if #ended > 0 then
    redis.call('HDEL', ring .. 'jobs', unpack(ended))
    if redis.call('EXISTS', ring .. 'cancels', ring .. 'notes', ring .. 'returned') > 0 then -- mostly there is none
      for _, name in ipairs({'cancels', 'notes', 'returned'}) do redis.call('HDEL', ring .. name, unpack(ended)) end
    end
  end
  forget_returns(ring .. 'unhandled', handled)
  erase()
  local entries, marks = {}, {}
  for ledger, batch in pairs(ends) do
    local text = '[' .. table.concat(batch, ',') .. ']'
    entries[ledger] = redis.call('XADD', ring .. 'outcomes:' .. ledger, '*', 'ends', text)
  end
  for _, tomb in ipairs(tombs) do
    marks[#marks + 1] = tomb[1]
    marks[#marks + 1] = tomb[2] .. ':' .. entries[tomb[3]]
  end
  if #marks > 0 then redis.call('HSET', ring .. 'finished', unpack(marks)) end
end

local function accepted(i, id, held, lease)
  local head = '^(%a+):(%d+):(%d*):([^:]*):(%d+:%d+):(%d+:%d+):(.*)$'
  local verb, delay, uncharged, previous, token, lease_end, parent = string.match(ARGV[5 * i + 9], head)
  local ours = held == 1 and not pending[id]
  if verb == 'unreadable' then -- whoever cannot read it knows neither its token nor its parent
    parent = (read(ARGV[5 * i + 11]) or {}).parent
  else
    local leased = lease == token .. ':' .. worker .. ':' .. lease_end
    ours = ours and (leased or taking_back and not lease)
  end
  if not ours then return false end
  if parent == '' or parent == id or not is_id(parent) then parent = nil end
  pending[id] = {{uuid = id, parent = parent}, verb, tonumber(delay), token, uncharged, previous}
  return true
end

local function end_all()
  if count == 0 then return '' end
  local ids, kin, answer = {}, {}, {}
  for i = 1, count do ids[i] = ARGV[5 * i + 8] end
  local held, leases = redis.call('SMISMEMBER', mine, unpack(ids)), redis.call('HMGET', ring .. 'attempts', unpack(ids))
  for i, id in ipairs(ids) do
    answer[i] = accepted(i, id, held[i], leases[i]) and '1' or '0'
    if answer[i] == '1' then
      unleased[#unleased + 1] = id
      for _, what in ipairs({':children', ':active', ':onComplete'}) do kin[#kin + 1] = bodies .. id .. what end
    end
  end
  if #unleased == 0 then return table.concat(answer) end
  redis.call('SREM', mine, unpack(unleased))
  families = redis.call('EXISTS', unpack(kin)) > 0
  for i, id in ipairs(ids) do
    if answer[i] == '1' then
      local ledger, raw, outcome = unpack(ARGV, 5 * i + 10, 5 * i + 12)
      local job, verb, delay, token, uncharged, previous = unpack(pending[id])
      pending[id] = nil
      end_one(job, verb, delay, token, uncharged, previous, ledger, raw)
      if ledger ~= '' and outcome ~= '' then
        ends[ledger] = ends[ledger] or {}
        table.insert(ends[ledger], outcome)
      end
    end
  end
  write()
  return table.concat(answer)
end
