-- Part of some: what the end of a job means for those that waited for it.
local gone, over, pending = {}, {}, {} -- jobs that are closed; jobs whose end is not looked at yet
local families = true -- whether any of these jobs has children or heirs

local function take_list(key, with)
  local any = false
  while true do
    local raw = redis.call('RPOP', key)
    if not raw then return any end
    local job = read(raw)
    any = any or job ~= nil
    if job then with(job) else redis.call('LPUSH', failed, raw) end
  end
end

local function bring(job) add(job, true) end
local function bury(job) redis.call('LPUSH', failed, job.raw) end

-- Whoever runs it closes it; a worker that died with it will be missed, and then it runs again.
local function runs(uuid) return pending[uuid] or is_held(uuid) end

-- Leave the parent, and return it if it can be closed now.
local function leave_parent(job)
  if not job.parent then return nil end
  local key = bodies .. job.parent
  redis.call('SREM', key .. ':active', job.uuid)
  if gone[job.parent] or redis.call('SCARD', key .. ':active') > 0 then return nil end
  local body = redis.call('GET', key)
  if not body or runs(job.parent) then return nil end
  families = true -- of this one nobody looked
  return read(body)
end

local function forget(uuid)
  gone[uuid] = true
  over[#over + 1] = uuid
end

local function erase()
  if #over == 0 then return end
  redis.call('SREM', active, unpack(over))
  for i, uuid in ipairs(over) do over[i] = bodies .. uuid end
  redis.call('DEL', unpack(over))
end

local function has_family(uuid)
  if not families then return false end
  local key = bodies .. uuid
  return redis.call('EXISTS', key .. ':children', key .. ':active', key .. ':onComplete') > 0
end

-- Its run is over: its children begin, then its heirs, then it is one child less of its parent.
local function close(job)
  while job do
    if has_family(job.uuid) then
      local key = bodies .. job.uuid
      if take_list(key .. ':children', bring) or redis.call('SCARD', key .. ':active') > 0 then
        redis.call('EXPIRE', key, LIFETIME)
        return
      end
      take_list(key .. ':onComplete', bring)
    end
    forget(job.uuid)
    job = leave_parent(job)
  end
end

-- It failed for good: what waited for it is kept with it, and its parent waits no longer.
local function fail(job, raw)
  local key = bodies .. job.uuid
  if raw ~= '' then redis.call('LPUSH', failed, raw) end
  if has_family(job.uuid) then
    take_list(key .. ':children', bury)
    take_list(key .. ':onComplete', bury)
  end
  forget(job.uuid)
  close(leave_parent(job))
end
