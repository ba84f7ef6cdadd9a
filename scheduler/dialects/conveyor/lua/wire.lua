-- Part of some: reads the bytes of a job, as far as scripts need them.
local FIELDS = {
  [1] = 'uuid', [3] = 'queue', [5] = 'run_at', [6] = 'parent', [7] = 'predecessor', [9] = 'retry', [1000] = 'feed',
  [1001] = 'priority', [1002] = 'installation',
}
local LAST = 1002
local byte, sub, floor = string.byte, string.sub, math.floor

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

-- Read one field; without a number it ends where no field can.
local function field(raw, at)
  local tag, value
  tag, at = varint(raw, at)
  if not tag then return nil, at end
  local number, kind = floor(tag / 8), tag % 8
  if kind == 0 then
    value, at = varint(raw, at)
    if not value then number = nil end
  elseif kind == 2 then
    local length
    length, at = varint(raw, at)
    if not length or at + length - 1 > #raw then return nil, at end
    if FIELDS[number] then value = sub(raw, at, at + length - 1) end
    at = at + length
  elseif kind == 1 or kind == 5 then
    at = at + (kind == 1 and 8 or 4)
  else
    number = nil
  end
  return number, at, value
end

-- Read a job, or nil if these bytes are none: without an id or a queue nobody can work it.
local function read(raw)
  local job, at, size = {raw = raw}, 1, #raw
  local number, value
  while at <= size do
    number, at, value = field(raw, at)
    if not number then return nil end
    local name = FIELDS[number]
    if name and value ~= '' then job[name] = value end
    if number >= LAST then break end
  end
  if type(job.uuid) ~= 'string' or type(job.queue) ~= 'string' then return nil end
  if (job.retry or 0) > 2147483647 then job.retry = 0 end -- it is negative
  return job
end

-- When a job should run, in ms, or nil.
local function due_of(job)
  if not job.run_at then return nil end
  local at, read_at = 1, {0, 0}
  while at <= #job.run_at do
    local number, value
    number, at, value = field(job.run_at, at)
    if not number then return nil end
    read_at[number] = value
  end
  if read_at[1] >= 2 ^ 63 then return 0 end -- before 1970
  return read_at[1] * 1000 + floor(read_at[2] / 1000000)
end
