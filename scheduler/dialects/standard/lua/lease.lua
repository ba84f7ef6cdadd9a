-- Part of finish: lease jobs to the worker.
-- A lease is format:score:started:charged:redelivered:worker:epoch:attempt:sequence. The start time has leading zeros
-- that make a lease longer than 64 bytes, because Redis searches a small hash of short values from its beginning.
local sub, find, sequence, bytes, leased, top = string.sub, string.find, tonumber(ARGV[8]) - 1, 0, {}, {}
local started = string.format(':%013.0f', now)
started = ':' .. string.rep('0', 54 - #mine - #started) .. string.sub(started, 2)
local LONG = 1e14 -- Lua writes longer numbers with an exponent
local plain = started .. ':1:0' .. mine .. '1:1:'

-- Returns epoch, attempts, charged attempts, whether it was redelivered uncharged, and whether it was attempted since
-- it was pushed; nil: unreadable.
local function counts_of(record, at)
  local epoch, attempt, charged = string.match(record, '^1:(%d+):(%d+):(%d+):%d+:')
  local last, attempts, charges, redelivered = string.match(at or '', '^1:%a+:(%d+):(%d+):(%d+):(%d)')
  if not epoch or last ~= epoch then return epoch, attempt, charged, '0', false end
  return epoch, attempts, charges, redelivered, true
end

-- The virtual time of a level is the latest start of its jobs that were taken.
local function raise(scores)
  for i = #scores, 1, -1 do
    local score = tonumber(scores[i])
    local level = math.floor(score / SPAN)
    if score > (top[level] or -1) then top[level] = score end
    if math.floor(tonumber(scores[1]) / SPAN) == level then return end -- they are in order
  end
end

-- An entry without a record is dropped: its job was removed.
local function lease_one(entry, score, id, record, at, aside)
  local number = newer_format(record) or newer_format(at or '')
  local epoch, attempt, charged, redelivered, again = counts_of(record, at)
  if number then
    for _, value in ipairs({entry, score, id, 'format:' .. number}) do aside[#aside + 1] = value end
  elseif not epoch then
    bury(entry .. '\0' .. record, 'the record is unreadable')
    redis.call('HDEL', jobs, id)
    redis.call('HDEL', state, id)
  else
    local extra = again and attempt + 1 .. ':' .. charged + 1 .. ':' .. (redis.call('HGET', notes, id) or '') or ''
    local counted = ':' .. charged + 1 .. ':' .. redelivered .. mine .. epoch .. ':' .. attempt + 1 .. ':'
    return '1:' .. score .. started .. counted, extra
  end
end

-- Returns the readable ids, and the index of the entry of each.
local function read_ids(entries, scores, aside)
  local ids, from, count_ids = {}, {}, 0
  for i = 1, #entries do
    local id = id_of(entries[i])
    local number = not id and newer_format(entries[i])
    if id and not leased[id] then
      count_ids = count_ids + 1
      ids[count_ids], from[count_ids], leased[id] = id, i, true
    elseif number then
      for _, value in ipairs({entries[i], scores[i], false, 'format:' .. number}) do aside[#aside + 1] = value end
    elseif not id then
      bury(entries[i], 'the entry is unreadable')
    end
  end
  return ids, from
end

local function lease_all(entries, scores)
  local aside, written, known, kept, place = {}, {}, {}, {}, #taken
  raise(scores)
  local ids, from = read_ids(entries, scores, aside)
  local records = #ids > 0 and redis.call('HMGET', jobs, unpack(ids)) or {}
  local states = rare and #ids > 0 and redis.call('HMGET', state, unpack(ids)) or {}
  for i = 1, #ids do
    local id, score, record, at = ids[i], scores[from[i]], records[i], states[i]
    local lease, extra
    if find(score, 'e', 1, true) then score = string.format('%.0f', score) end
    if record and not at and sub(record, 1, 8) == '1:1:0:0:' then -- most jobs
      lease, extra = '1:' .. score .. plain, ''
    elseif record then
      lease, extra = lease_one(entries[from[i]], score, id, record, at, aside)
    end
    if lease then
      sequence, bytes = sequence + 1, bytes + #record
      local number = #kept
      kept[number + 1] = id
      written[2 * number + 1] = id
      written[2 * number + 2] = lease .. (sequence < LONG and sequence or string.format('%.0f', sequence))
      taken[place + 1] = id -- one by one: Lua assigns several from right to left, which grows a table slowly
      taken[place + 2] = record
      taken[place + 3] = extra
      place = place + 3
    end
    if at and (lease or not record) then known[#known + 1] = id end
  end
  if #known > 0 then redis.call('HDEL', state, unpack(known)) end
  if #kept > 0 then
    redis.call('HSET', leases, unpack(written))
    redis.call('SADD', held, unpack(kept))
  end
  if #aside > 0 then block(aside) end
end
