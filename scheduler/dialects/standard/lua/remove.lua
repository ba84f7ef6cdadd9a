-- Part of cancel and push: remove a job from where it waits for a worker.

-- Returns the entry of a job, built from its record; nil: the record is unreadable.
local function entry_of(id, record)
  local length, first = string.match(record, '^1:%d+:%d+:%d+:(%d+):()')
  if not first then return nil end
  local read, head = pcall(cjson.decode, string.sub(record, first, first + tonumber(length) - 1))
  if not read or type(head) ~= 'table' then return nil end
  if type(head[1]) ~= 'string' or type(head[2]) ~= 'string' then return nil end
  return '1\31' .. id .. '\31' .. head[2] .. '\31' .. head[1]
end

-- Returns the due time of a job that was waiting for a retry, or nil.
local function remove(id, record)
  local at, entry = redis.call('HGET', state, id) or '', entry_of(id, record)
  if not entry then return nil end -- the entry is dropped by the next fetch that reads it
  local score, reason = string.match(at, '^1:blocked:%d+:%d+:%d+:%d+:[^:]*:(%d+):(.*)$')
  local due = string.match(at, '^1:retrying:.*:(%d+)$')
  if score then
    if redis.call('ZREM', blocked, reason .. '\0' .. score .. entry) == 1 then discount(reason, 1) end
  elseif due then
    redis.call('ZREM', retrying, entry)
  else
    redis.call('ZREM', waiting, entry)
  end
  return due
end
