-- Part of some: what the end of a job means for those that waited for it.
local gone, over, pending = {}, {}, {} -- jobs that are closed; jobs whose end is not looked at yet
local families = true -- whether any of these jobs has children or heirs
local MOST = 1000 -- values of one command

-- Empty a list; what `with` does not take goes to failed. Returns whether it took any.
local function take_list(key, with)
  local any = false
  while true do
    local raw = try('RPOP', key)
    if not raw then return any end
    local job = read(raw)
    if job and with(job) then any = true else redis.call('LPUSH', failed, raw) end
  end
end

local function bring(job) return add(job, true) end
local function bury() return false end

-- Whoever runs it closes it; a worker that died with it will be missed, and then it runs again.
local function runs(uuid) return pending[uuid] or is_held(uuid) end

-- Whether it waits for children that are under way.
local function waits(key) return (try('SCARD', key .. ':active') or 0) > 0 end

-- Leave the parent, and return it if it can be closed now.
local function leave_parent(job)
  if not job.parent then return nil end
  local key = bodies .. job.parent
  try('SREM', key .. ':active', job.uuid)
  if gone[job.parent] or waits(key) then return nil end
  local body = try('GET', key)
  if not body or runs(job.parent) then return nil end
  families = true -- of this one nobody looked
  return read(body)
end

local function forget(uuid)
  gone[uuid] = true
  over[#over + 1] = uuid
end

local function erase()
  for first = 1, #over, MOST do
    local last = math.min(first + MOST - 1, #over)
    redis.call('SREM', active, unpack(over, first, last))
    for i = first, last do over[i] = bodies .. over[i] end
    redis.call('DEL', unpack(over, first, last))
  end
  over = {}
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
      if take_list(key .. ':children', bring) or waits(key) then
        for _, what in ipairs({'', ':onComplete'}) do redis.call('EXPIRE', key .. what, LIFETIME) end
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
