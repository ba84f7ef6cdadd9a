-- Part of finish: put jobs into the worker's hands.
-- An entry whose job was removed, or is in other hands, is dropped; one that is not a job is a dead letter.
local sub, find, format = string.sub, string.find, string.format
local MANY, LONG = 16, string.rep('-', 65) -- a hash with a long value is not gone through from its beginning for each
local MOST_RETRIES = 1000000 -- what nobody has counted is not to be written as 1e+30
local bytes, mine, sequence = 0, format(':%s:%d:', worker, now), tonumber(ARGV[9])
local leased = returned -- a job that this call puts back is not leased by it, whatever entry it has

local function bury(entry)
  buries = true
  if not free then redis.call('LREM', processing, 1, entry) end
  redis.call('LPUSH', dead, entry)
  redis.call('HSET', reasons, redis.sha1hex(entry), 'the entry is not a job: it has no id')
end

local function lives(held)
  local owner = string.match(held, '^%d+:%d+:(.*):%d+:%d+$')
  if not owner then return false end -- it is no lease, and nobody can renew it
  return owner == worker or tonumber(redis.call('ZSCORE', workers, owner) or 0) > now
end

-- What a cancel left behind, or the twin of a job that was fed again.
local function stale(id, entry, record, held, waits)
  if not record and find(entry, '"filepath":""', 1, true) then return true end
  if leased[id] or held and lives(held) then return true end
  return waits and tonumber(string.match(waits, '(%d+)$')) > now
end

local function lease_all(ids, entries, taken, list)
  local records = redis.call('HMGET', jobs, unpack(ids))
  local held = redis.call('HMGET', attempts, unpack(ids))
  local rare = redis.call('EXISTS', between, KEYS[23]) > 0 -- whether some had an attempt before
  local waits = rare and redis.call('HMGET', between, unpack(ids)) or {}
  local counts = rare and redis.call('HMGET', KEYS[23], unpack(ids)) or {}
  local said = rare and redis.call('HMGET', notes, unpack(ids)) or {}
  local leases, begun = {}, {}
  for i, id in ipairs(ids) do
    local record, entry = records[i], entries[i]
    local is_stale = stale(id, entry, record, held[i], waits[i])
    if free and not is_leasable(list, entry, record, is_stale, #taken / 4) then
      bytes = bytes + #(record or '')
    elseif is_stale then
      redis.call('LREM', processing, 1, entry)
    else
      local feed, attempt = '1', 0 -- what most are is read without a pattern
      if waits[i] or held[i] or sub(record or '', 1, 4) ~= '1:0:' then
        feed, attempt = string.match(waits[i] or held[i] or record or '0:0:', '^(%d+):(%d+):')
      end
      local uncharged, orphaned, previous
      if counts[i] then uncharged, orphaned, previous = returned_of(counts[i], feed or '0') end
      if uncharged or not find(entry, '"retries":0', 1, true) then -- a worker of the original may have counted on
        local counted = tonumber(string.match(entry, '"retries": ?(%d+)') or 0) -- those that are charged
        attempt = math.max(attempt or 0, math.min(counted, MOST_RETRIES) + (uncharged or 0))
      end
      attempt = (attempt or 0) + 1
      leased[id] = true
      begun[#begun + 1] = id
      leases[#leases + 1] = id
      -- a number is dear to write, least by a format
      leases[#leases + 1] = (feed or 0) .. ':' .. (attempt == 1 and '1' or attempt) .. mine .. format('%d', sequence)
      sequence = sequence + 1
      taken[#taken + 1] = entry
      taken[#taken + 1] = record or ''
      taken[#taken + 1] = attempt
      local extra = {uncharged or '', orphaned or '', previous or '', said[i] or ''}
      taken[#taken + 1] = (uncharged or said[i]) and table.concat(extra, ':') or ''
      bytes = bytes + #entry + #(record or '')
    end
  end
  if #ids >= MANY then redis.call('HSET', attempts, '', LONG) end
  if #leases > 0 then redis.call('HSET', attempts, unpack(leases)) end
  if #ids >= MANY then redis.call('HDEL', attempts, '') end
  if #begun > 0 and rare then redis.call('HDEL', between, unpack(begun)) end
end

-- What ours begin with is read without a pattern.
local function id_of(entry)
  local stop = sub(entry, 1, 7) == '{"id":"' and find(entry, '"', 8, true) or 8
  return stop > 8 and sub(entry, 8, stop - 1) or string.match(entry, '"id": ?"([^"]+)"')
end

-- `list`: from which the entries were popped; needed with limits, when some of them may be left there.
local function hold(found, taken, list)
  if not free then redis.call('LPUSH', processing, unpack(found)) end
  local ids, entries = {}, {}
  for _, entry in ipairs(found) do
    local id = id_of(entry)
    if id then
      ids[#ids + 1] = id
      entries[#entries + 1] = entry
    else
      bury(entry)
    end
  end
  if #ids > 0 then lease_all(ids, entries, taken, list) end
end
