-- Part of finish: put jobs into the worker's hands, and on the way what is due into its queue.
local MOST_BYTES, CHUNK, DUE, GONE = 16 * 1024 * 1024, 100, 200, 3600000
local MOST_PASSED = 100 -- jobs of full types that a call looks past
local bytes, leased, sequence, passed = 0, {}, tonumber(ARGV[9]), 0
local free = ARGV[10] ~= '' and cjson.decode(ARGV[10]) -- by type, how many jobs may be leased
local left = {} -- jobs that stay in their list, by its name
if free then TAGS[18] = 'type' end

-- Of two entries of one job that a ledger fed, the later feed counts; a cancelled one has none.
local function current(job, known) return known and tonumber(string.match(known, '^%d+')) == job.feed end

-- Whatever is scheduled is past its parent: whoever adds a job to a parent that is not, does not schedule it.
local function promote()
  local due = redis.call('ZRANGEBYSCORE', scheduled, '-inf', seconds(now), 'LIMIT', 0, DUE)
  if #due == 0 then return end
  redis.call('ZREM', scheduled, unpack(due))
  for _, raw in ipairs(due) do
    local job = read(raw)
    if not job then
      redis.call('LPUSH', failed, raw)
    else
      local of = ring_of(job.queue)
      if not job.feed or current(job, redis.call('HGET', of .. 'jobs', job.uuid)) then
        redis.call('ZREM', of .. 'retries', job.uuid)
        if not push(job) then
          redis.call('HDEL', of .. 'jobs', job.uuid)
          families = true -- of these nobody looked
          fail(job, raw)
        elseif job.parent then
          follow(job)
        end
      end
    end
  end
  erase()
end

-- Whether its worker goes on with it; if not, it is its own no longer.
local function lives(lease, uuid)
  local owner = string.match(lease, '^%d+:%d+:(.*):%d+:%d+$')
  if not owner then return false end -- it is no lease, and nobody can renew it
  if tonumber(redis.call('ZSCORE', ring .. 'workers', owner) or 0) > now then
    if redis.call('SISMEMBER', held_by(owner), uuid) == 1 then return true end
  end
  redis.call('SREM', held_by(owner), uuid)
  return false
end

local function lease(job, known, held, taken, said, returned)
  local uuid, raw = job.uuid, job.raw
  local uncharged, orphaned, previous
  if returned then uncharged, orphaned, previous = returned_of(returned, string.format('%d', job.feed or 0)) end
  -- `retry` counts the attempts that are charged.
  local before = math.max((job.retry or 0) + (uncharged or 0), string.match(known or '', ':(%d+)$') or 0)
  local attempt = math.max(before, string.match(held or '', '^%d+:(%d+):') or 0) + 1
  leased[uuid] = string.format('%d:%d:%s:%d:%d', job.feed or 0, attempt, worker, now, sequence)
  sequence = sequence + 1
  say(raw, RUNNING)
  taken[#taken + 1] = uuid
  taken[#taken + 1] = raw
  taken[#taken + 1] = attempt
  local extra = {uncharged or '', orphaned or '', previous or '', said or ''}
  taken[#taken + 1] = (uncharged or said) and table.concat(extra, ':') or ''
  bytes = bytes + #raw
end

-- Leave a job in the list from which it was popped.
local function leave(list, raw)
  left[list] = left[list] or {}
  table.insert(left[list], raw)
end

-- Put the jobs that were left back to the end of the list from which they were popped, in their order.
local function restore()
  for list, raws in pairs(left) do
    for i = 1, #raws / 2 do raws[i], raws[#raws + 1 - i] = raws[#raws + 1 - i], raws[i] end
    redis.call('RPUSH', list, unpack(raws))
  end
end

local function lease_all(found, taken, list)
  local jobs, ids = {}, {}
  for _, raw in ipairs(found) do
    local job = read(raw)
    if job then
      jobs[#jobs + 1] = job
      ids[#ids + 1] = job.uuid
    else
      redis.call('LPUSH', failed, raw)
    end
  end
  if #ids == 0 then return end
  local known = redis.call('HMGET', ring .. 'jobs', unpack(ids))
  local held = redis.call('HMGET', ring .. 'attempts', unpack(ids))
  local rare = redis.call('EXISTS', ring .. 'notes', ring .. 'returned') > 0 -- whether some had an attempt before
  local notes = rare and redis.call('HMGET', ring .. 'notes', unpack(ids)) or {}
  local returned = rare and redis.call('HMGET', ring .. 'returned', unpack(ids)) or {}
  local mine_now, leases, written = {}, {}, {}
  for i, job in ipairs(jobs) do
    local counts = not leased[job.uuid] and (current(job, known[i]) or not (job.feed or known[i]))
    local slots = free and free[job.type or '']
    if free and (#taken / 4 >= wanted or passed > MOST_PASSED) then
      leave(list, job.raw)
    elseif counts and slots and slots <= 0 then -- asked before `lives`, which changes what it looks at
      leave(list, job.raw)
      passed = passed + 1
    elseif counts and not (held[i] and lives(held[i], job.uuid)) then
      if slots then free[job.type or ''] = slots - 1 end
      lease(job, known[i], held[i], taken, notes[i], returned[i])
      mine_now[#mine_now + 1] = job.uuid
      leases[#leases + 1] = job.uuid
      leases[#leases + 1] = leased[job.uuid]
      written[#written + 1] = bodies .. job.uuid
      written[#written + 1] = job.raw
    end
  end
  if #mine_now == 0 then return end
  redis.call('MSET', unpack(written))
  redis.call('HSET', ring .. 'attempts', unpack(leases))
  redis.call('SADD', mine, unpack(mine_now))
  redis.call('SADD', active, unpack(mine_now))
end

local function take()
  local taken = {}
  for _, job in ipairs(backs) do leased[job.uuid] = true end -- whatever entry it has
  promote()
  redis.call('ZREMRANGEBYSCORE', ring .. 'retries', '-inf', now - GONE) -- others took them
  for level = 0, #LEVELS - 1 do
    local list = list_of(queue, level)
    while #taken / 4 < wanted and bytes < MOST_BYTES and passed <= MOST_PASSED do
      -- The more jobs were passed over, the more are read at once: a worker may have one slot free.
      local found = redis.call('RPOP', list, math.min(CHUNK, math.max(wanted - #taken / 4, passed)))
      if not found then break end
      lease_all(found, taken, list)
    end
  end
  restore()
  return taken
end
