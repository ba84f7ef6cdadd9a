-- Part of some: what the end of a job means for those that waited for it.
local gone, over, pending = {}, {}, {} -- jobs that are closed; jobs whose end is not looked at yet
local families = true -- whether any of these jobs has children or heirs
local MOST = 1000 -- values of one command
local room, FEW = 5000, 1000 -- so many begin in one call, and the next when so few are under way: others want Redis too

-- Empty a list, as far as there is room; what `with` does not take goes to failed. Returns whether some were taken, or
-- are left.
local function take_list(key, with)
  local any = false
  while room > 0 do
    local raw = try('RPOP', key)
    if not raw then return any end
    local job = read(raw)
    if job and with(job) then any = true else redis.call('LPUSH', failed, raw) end
    room = room - 1
  end
  return any or redis.call('EXISTS', key) == 1
end

local function bring(job) return add(job, true) end
local function bury() return false end

-- Whoever runs it closes it; a worker that died with it will be missed, and then it runs again.
local function runs(uuid) return pending[uuid] or is_held(uuid) end

-- How many of its children are under way.
local function waits_for(key) return try('SCARD', key .. ':active') or 0 end

-- Leave the parent, and return it if it can be closed now.
local function leave_parent(job)
  if not job.parent then return nil end
  local key = bodies .. job.parent
  try('SREM', key .. ':active', job.uuid)
  local others = waits_for(key)
  if gone[job.parent] or others >= FEW then return nil end
  if others > 0 and redis.call('EXISTS', key .. ':children') == 0 then return nil end
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
      if take_list(key .. ':children', bring) or waits_for(key) > 0 then
        for _, what in ipairs({'', ':onComplete'}) do redis.call('EXPIRE', key .. what, LIFETIME) end
        return
      end
      take_list(key .. ':onComplete', bring)
      if room == 0 and redis.call('EXISTS', key .. ':onComplete') == 1 then return end -- whoever looks for such goes on
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
    for _, what in ipairs({':children', ':onComplete'}) do
      try('LTRIM', key .. what, -MOST, -1)
      take_list(key .. what, bury)
    end
  end
  forget(job.uuid)
  close(leave_parent(job))
end
