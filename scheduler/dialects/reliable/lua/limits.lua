-- Part of finish, if the worker has types that are near their limit: leave the jobs of full types in their lists.
-- Wants the local `free`, by type how many jobs may be leased, and sets `is_leasable` and `restore`. With limits an
-- entry is put into the worker's list when it is leased, without them with all that were popped.
local types = {} -- by the head of a record: the jobs of a batch mostly share it

-- Return the type of a job, or nothing if its record cannot be read: then it is leased, and becomes a dead letter.
local function type_of(record)
  if (record or '') == '' then return 'file' end -- a producer of the original made it
  local size, start = string.match(record, '^%d+:%d+:(%d+):()')
  local head = size and string.sub(record, start, start + size - 1) or ''
  if types[head] == nil then
    local read, values = pcall(cjson.decode, head)
    types[head] = read and type(values) == 'table' and values[2] or false
  end
  return types[head]
end

local function leave(list, entry)
  left[list] = left[list] or {}
  table.insert(left[list], entry)
  return false
end

-- Return whether a job is to be leased now, and count a slot of its type as taken. If not, its entry stays in the list
-- from which it was popped, or is dropped if it is stale. `made`: how many leases were made.
is_leasable = function(list, entry, record, is_stale, made)
  if made >= wanted or passed > MOST_PASSED then return leave(list, entry) end
  if is_stale then return false end
  local name = type_of(record)
  local slots = free[name]
  if slots and slots <= 0 then
    passed = passed + 1
    return leave(list, entry)
  end
  if slots then free[name] = slots - 1 end
  redis.call('LPUSH', processing, entry)
  return true
end

-- Put the jobs that were left back to the end of the list from which they were popped, in their order.
restore = function()
  for list, entries in pairs(left) do
    for i = 1, #entries / 2 do entries[i], entries[#entries + 1 - i] = entries[#entries + 1 - i], entries[i] end
    redis.call('RPUSH', list, unpack(entries))
  end
end
