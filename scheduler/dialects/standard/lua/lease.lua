-- Part of finish: lease jobs that the worker can take, and set the others aside.
-- A lease is format:score:started:charged:orphaned:previous:worker:epoch:attempt:sequence. The start time has leading
-- zeros that make a lease longer than 64 bytes, because Redis searches a small hash of short values from its beginning.
local SPAN, MOVES = 2 ^ 50, 1000 -- of scores in a level; jobs that one call sets aside, at most
local LONG = 1e14 -- Lua writes longer numbers with an exponent
local LIMITS = FIRST + 2 * count + (tonumber(ARGV[11]) or 0)
local handled, free, kinds, aside = nil, {}, {}, {} -- aside: entry, score, id or false, and reason of each
local sequence, bytes, leased, top = tonumber(ARGV[8]) - 1, 0, {}, {}
local started = string.format(':%013.0f', now)
started = ':' .. string.rep('0', 54 - #mine - #started) .. string.sub(started, 2)
local plain = started .. ':1:0:' .. mine .. '1:1:'
if ARGV[11] ~= '' then
  handled = {}
  for i = FIRST + 2 * count + 1, LIMITS do handled[ARGV[i]] = true end
end
for i = LIMITS + 1, LIMITS + 2 * tonumber(ARGV[12]), 2 do free[ARGV[i]] = tonumber(ARGV[i + 1]) end
local every = not handled and ARGV[12] == '0'
local stopped = rare and redis.call('EXISTS', KEYS[20]) == 1 and {} -- tenant -> whether it is paused

local function can_take(kind)
  return (not handled or handled[kind]) and (not free[kind] or free[kind] > 0)
end

-- Returns the id of an entry; nil: it has a newer format or is unreadable.
local function id_of(entry)
  local number, separator = string.byte(entry, 1, 2)
  if number ~= 49 or separator ~= 31 then return nil end
  local stop = string.find(entry, '\31', 3, true)
  return stop and stop > 3 and string.sub(entry, 3, stop - 1) or nil
end

-- found: entries and scores. parked: they are of types that the worker can take.
local function admit(found, parked)
  local sub, find = string.sub, string.find
  local ids, entries, scores, written, known, kept, number, place = {}, {}, {}, {}, {}, {}, 0, #taken
  local tenants = stopped and {}
  if tenants then -- read which tenants of the entries are paused
    local names = {}
    for i = 1, #found, 2 do
      local name = string.match(found[i], '^1\31[^\31]*\31[^\31]*\31([^\31]*)')
      tenants[i] = name
      if name and stopped[name] == nil then
        stopped[name] = false
        names[#names + 1] = name
      end
    end
    local by = #names > 0 and redis.call('HMGET', KEYS[20], unpack(names)) or {}
    for i, name in ipairs(names) do stopped[name] = by[i] ~= false end
  end
  for i = 1, #found, 2 do
    local entry, kind = found[i], nil
    local id = id_of(entry)
    if id and not every and not parked then
      local rest = sub(entry, #id + 4)
      kind = kinds[rest]
      if not kind then
        kind = string.match(rest, '^[^\31]*')
        kinds[rest] = kind
      end
    end
    local reason = not id and newer_format(entry)
    if reason then
      reason = 'format:' .. reason
    elseif id and tenants and stopped[tenants[i]] then
      reason = 'tenant:' .. tenants[i]
    elseif kind and not can_take(kind) then
      reason = 'type:' .. kind
    end
    if reason then
      for _, each in ipairs({entry, found[i + 1], id or false, reason}) do aside[#aside + 1] = each end
    elseif not id then
      letters[#letters + 1] = {entry, 'the entry is unreadable'}
    elseif not leased[id] then
      number = number + 1
      ids[number], entries[number], scores[number], leased[id] = id, entry, found[i + 1], true
      if free[kind] then free[kind] = free[kind] - 1 end
    end
  end
  if number == 0 then return end
  -- The virtual time of a level is the latest start of its jobs that were taken. The scores are in order.
  local lowest = math.floor(tonumber(scores[1]) / SPAN)
  for i = number, 1, -1 do
    local score = tonumber(scores[i])
    local level = math.floor(score / SPAN)
    if score > (top[level] or -1) then top[level] = score end
    if level == lowest then break end
  end
  local records = redis.call('HMGET', jobs, unpack(ids))
  local states = rare and redis.call('HMGET', state, unpack(ids)) or {}
  for i = 1, number do
    local id, score, record, at = ids[i], scores[i], records[i], states[i]
    local lease, extra
    if find(score, 'e', 1, true) then score = string.format('%.0f', score) end
    if record and not at and sub(record, 1, 8) == '1:1:0:0:' then -- most jobs
      lease, extra = '1:' .. score .. plain, ''
    elseif record then
      local newer = newer_format(record) or newer_format(at or '')
      local epoch, attempt, charged = string.match(record, '^1:(%d+):(%d+):(%d+):%d+:')
      local last, attempts, charges, lost, previous = string.match(at or '', '^1:%a+:(%d+):(%d+):(%d+):(%d):([^:]*)')
      if newer then
        for _, each in ipairs({entries[i], score, id, 'format:' .. newer}) do aside[#aside + 1] = each end
      elseif not epoch then
        letters[#letters + 1] = {entries[i] .. '\0' .. record, 'the record is unreadable'}
        redis.call('HDEL', jobs, id)
        redis.call('HDEL', state, id)
      else
        if last == epoch then -- it was attempted since it was pushed
          attempt, charged = attempts, charges
          extra = table.concat({attempt + 1, charged + 1, lost, previous, redis.call('HGET', notes, id) or ''}, ':')
        end
        local before = extra and lost .. ':' .. previous or '0:'
        local counted = ':' .. charged + 1 .. ':' .. before .. mine .. epoch .. ':' .. attempt + 1 .. ':'
        lease, extra = '1:' .. score .. started .. counted, extra or ''
      end
    end
    if lease then
      sequence, bytes = sequence + 1, bytes + #record
      local count_kept = #kept
      kept[count_kept + 1] = id
      written[2 * count_kept + 1] = id
      written[2 * count_kept + 2] = lease .. (sequence < LONG and sequence or string.format('%.0f', sequence))
      taken[place + 1] = id -- one by one: Lua assigns several from right to left, which grows a table slowly
      taken[place + 2] = record
      taken[place + 3] = extra
      place = place + 3
    end
    if at and (lease or not record) then known[#known + 1] = id end -- without a record: the job was removed
  end
  if #known > 0 then redis.call('HDEL', state, unpack(known)) end
  if #kept > 0 then
    redis.call('HSET', leases, unpack(written))
    redis.call('SADD', held, unpack(kept))
  end
end
