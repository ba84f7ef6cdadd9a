-- Part of finish: end deliveries, each if it is still the worker's.
-- ARGV[10..] 5 values for each: uuid; verb:delay:feed:attempt; whose ledger it is in, or empty; bytes to go on with, or
-- for failed, or empty; end as JSON, or empty. Verbs: completed, dead, cancelled, retry, back, unreadable. The delay is
-- in ms.
local closed, backs, ends, tombs, ended, unleased = {}, {}, {}, {}, {}, {}

local function put_back()
  for i = #backs, 1, -1 do -- the first of them shall be the next again
    redis.call('RPUSH', list_of(backs[i].queue, backs[i].priority), backs[i].raw)
  end
end

local function count_attempts(job, attempts)
  if not job.feed or redis.call('HEXISTS', ring .. 'jobs', job.uuid) == 0 then return end
  redis.call('HSET', ring .. 'jobs', job.uuid, string.format('%d:%d', job.feed, attempts))
end

local function end_one(job, verb, delay, token, ledger, raw)
  local attempt = tonumber(string.match(token, '(%d+)$'))
  unleased[#unleased + 1] = job.uuid
  if verb == 'back' then
    backs[#backs + 1] = job
    forget(job.uuid)
    count_attempts(job, attempt - 1)
  elseif verb == 'retry' then
    redis.call('ZADD', scheduled, seconds(now + delay), raw)
    redis.call('ZADD', ring .. 'retries', now + delay, job.uuid)
    say(raw, FAILED)
    forget(job.uuid)
    count_attempts(job, attempt)
  else
    ended[#ended + 1] = job.uuid
    if verb == 'completed' then
      say(job.raw, COMPLETED)
      close(job)
    else
      say(raw ~= '' and raw or job.raw, FAILED)
      fail(job, raw)
    end
    if ledger ~= '' then
      tombs[#tombs + 1] = job.uuid
      tombs[#tombs + 1] = token
    end
  end
end

local function write()
  put_back()
  if #unleased > 0 then redis.call('HDEL', ring .. 'attempts', unpack(unleased)) end
  if #ended > 0 then
    for _, name in ipairs({'jobs', 'cancels', 'notes'}) do redis.call('HDEL', ring .. name, unpack(ended)) end
  end
  if #over > 0 then
    redis.call('SREM', active, unpack(over))
    for i, uuid in ipairs(over) do over[i] = bodies .. uuid end
    redis.call('UNLINK', unpack(over))
  end
  if #tombs > 0 then redis.call('HSET', ring .. 'finished', unpack(tombs)) end
  for ledger, batch in pairs(ends) do
    redis.call('XADD', ring .. 'outcomes:' .. ledger, '*', 'ends', '[' .. table.concat(batch, ',') .. ']')
  end
end

local function end_all()
  if count == 0 then return '' end
  local ids, names, answer, by = {}, {}, {}, ':' .. worker .. ':'
  for i = 1, count do
    ids[i] = ARGV[5 * i + 5]
    names[i] = bodies .. ids[i]
  end
  local held, leases = redis.call('SMISMEMBER', mine, unpack(ids)), redis.call('HMGET', ring .. 'attempts', unpack(ids))
  local raws = redis.call('MGET', unpack(names))
  for i, id in ipairs(ids) do
    local head, ledger, raw, outcome = unpack(ARGV, 5 * i + 6, 5 * i + 9)
    local verb, delay, token = string.match(head, '^(%a+):(%d+):(.*)$')
    local lease, ours = leases[i], held[i] == 1 and raws[i] and not closed[id]
    if verb ~= 'unreadable' then -- whoever cannot read it does not know its token
      if lease then ours = ours and string.find(lease, token .. by, 1, true) == 1 else ours = ours and taking_back end
    end
    answer[i] = ours and '1' or '0'
    if ours then
      closed[id] = true
      redis.call('SREM', mine, id)
      end_one(read(raws[i]) or {uuid = id, raw = raws[i]}, verb, tonumber(delay), token, ledger, raw)
      if ledger ~= '' and outcome ~= '' then
        ends[ledger] = ends[ledger] or {}
        table.insert(ends[ledger], outcome)
      end
    end
  end
  write()
  return table.concat(answer)
end
