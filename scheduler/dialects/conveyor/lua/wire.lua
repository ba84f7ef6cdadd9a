-- Part of some: reads the bytes of a job, as far as scripts need them.
local TAGS = { -- 8 times the number of a field, and 2 if it is a text
  [10] = 'uuid', [26] = 'queue', [42] = 'run_at', [50] = 'parent', [58] = 'predecessor', [72] = 'retry',
  [8000] = 'feed', [8008] = 'priority', [8018] = 'installation',
}
local LAST = 8018
local TAKEN = {
  scheduled = true, failed = true, events = true, ['jobs:'] = true, ['worker:'] = true, ['workers:'] = true,
  ['queues:'] = true, ['ring:'] = true,
}
local byte, sub = string.byte, string.sub

local function varint(raw, at)
  local value, scale = 0, 1
  while true do
    local part = byte(raw, at)
    if not part or scale > 1e19 then return nil, at end
    at = at + 1
    if part < 128 then return value + part * scale, at end
    value = value + (part - 128) * scale
    scale = scale * 128
  end
end

-- Ids and queues are parts of keys: of what others wrote, some would be the key of something else.
local function is_id(text) return not text or text ~= 'active' and not string.find(text, '[^%w-]') end
local function is_queue(name)
  local part = string.match(name, '^([^:]*):')
  return not seed or not (TAKEN[name] or part and TAKEN[part .. ':'])
end

-- Read a job, or nil if these bytes are none: without an id or a queue nobody can work it.
local function read(raw)
  local job, at, size = {raw = raw}, 1, #raw
  while at <= size do
    local tag, value = byte(raw, at), nil
    at = at + 1
    if tag > 127 then
      tag, at = varint(raw, at - 1)
      if not tag then return nil end
    end
    local kind = tag % 8
    if kind == 2 then
      value, at = varint(raw, at)
      if not value or at + value - 1 > size then return nil end
      local name = TAGS[tag]
      if name and value > 0 then job[name] = sub(raw, at, at + value - 1) end
      at = at + value
    elseif kind == 0 then
      value, at = varint(raw, at)
      if not value then return nil end
      if TAGS[tag] then job[TAGS[tag]] = value end
    elseif kind == 1 or kind == 5 then
      at = at + (kind == 1 and 8 or 4)
    else
      return nil
    end
    if tag >= LAST then break end
  end
  if not (job.uuid and job.queue and is_queue(job.queue)) then return nil end
  if job.feed and job.parent then return nil end -- what a ledger feeds has none
  if not (is_id(job.uuid) and is_id(job.parent) and is_id(job.predecessor)) then return nil end
  if (job.retry or 0) > 2147483647 then job.retry = 0 end -- it is negative
  if job.parent == job.uuid then job.parent = nil end
  if job.predecessor == job.uuid then job.predecessor = nil end
  return job
end

-- When a job should run, in ms, or nil.
local function due_of(job)
  if not job.run_at then return nil end
  local at, found = 1, {[8] = 0, [16] = 0}
  while at <= #job.run_at do
    local tag
    tag, at = varint(job.run_at, at)
    if not found[tag or 0] then return nil end
    found[tag], at = varint(job.run_at, at)
  end
  if not (found[8] and found[16]) then return nil end
  if found[8] >= 2 ^ 63 then return 0 end -- before 1970
  return found[8] * 1000 + math.floor(found[16] / 1000000)
end
