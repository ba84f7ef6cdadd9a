-- Part of finish: move due retries into their lists, then up to `wanted` jobs, higher levels first, into the worker's
-- hands, each with a lease. An entry whose job was cancelled is dropped, one that cannot be read is a dead letter.
-- Without KEYS or ARGV of its own.
local function promote()
  local due = redis.call('ZRANGEBYSCORE', retries, '-inf', now, 'LIMIT', 0, wanted)
  for _, member in ipairs(due) do
    redis.call('LPUSH', KEYS[tonumber(string.sub(member, 1, 1))], string.sub(member, 2))
  end
  if #due > 0 then redis.call('ZREM', retries, unpack(due)) end
end

local function bury(entry)
  redis.call('LREM', processing, 1, entry)
  redis.call('LPUSH', dead, entry)
  redis.call('HSET', reasons, redis.sha1hex(entry), 'the entry is not a job: it has no id')
end

local function lease_all(ids, entries, taken)
  local records = redis.call('HMGET', jobs, unpack(ids))
  local before = redis.call('HMGET', attempts, unpack(ids))
  local leases = {}
  for i, id in ipairs(ids) do
    local record, entry = records[i], entries[i]
    if not record and string.find(entry, '"filepath":""', 1, true) then
      redis.call('LREM', processing, 1, entry)
    else
      local feed, attempt = string.match(before[i] or record or '', '^(%d+):(%d+):')
      if not feed then feed, attempt = 0, string.match(entry, '"retries":(%d+)') or 0 end
      leases[#leases + 1] = id
      leases[#leases + 1] = feed .. ':' .. attempt + 1 .. ':' .. worker .. ':' .. now
      taken[#taken + 1] = entry
      taken[#taken + 1] = record or ''
      taken[#taken + 1] = attempt + 1
    end
  end
  if #leases > 0 then redis.call('HSET', attempts, unpack(leases)) end
end

local function take()
  local taken = {}
  if wanted <= 0 or redis.call('HLEN', finished) >= most_unsettled then return taken end
  promote()
  for level = 1, 5 do
    while #taken / 3 < wanted do
      local found = redis.call('RPOP', KEYS[level], wanted - #taken / 3)
      if not found or #found == 0 then break end
      redis.call('LPUSH', processing, unpack(found))
      local ids, entries = {}, {}
      for _, entry in ipairs(found) do
        local id = string.match(entry, '^{"id":"([^"]+)"') or string.match(entry, '"id": ?"([^"]+)"')
        if id then
          ids[#ids + 1] = id
          entries[#entries + 1] = entry
        else
          bury(entry)
        end
      end
      if #ids > 0 then lease_all(ids, entries, taken) end
    end
  end
  return taken
end

-- Whoever took the marker has looked; if there is more, the next of those who wait shall look.
local function wake()
  if redis.call('LLEN', marker) > 0 then return end
  for level = 1, 5 do
    if redis.call('LLEN', KEYS[level]) > 0 then
      redis.call('LPUSH', marker, '1')
      return
    end
  end
end
