-- Part of some: a job that is taken out before its end, and what that means for others.
local function scheduled(base, id)
  local scheduler, due = string.match(id, '^repeat:(.*):(%d+)$')
  return scheduler and redis.call('ZSCORE', base .. 'repeat', scheduler) == due
end

local function forget(base, id)
  local key = base .. id
  local read = redis.call('HMGET', key, 'parentKey', 'deid', 'parent')
  local parent_key, dedup = read[1], read[2] and base .. 'de:' .. read[2]
  if dedup and redis.call('GET', dedup) == id then redis.call('DEL', dedup, base .. 'dn:' .. read[2]) end
  remove_keys(key)
  if not parent_key or redis.call('SREM', parent_key .. ':dependencies', key) == 0 then return end
  if redis.call('EXISTS', parent_key .. ':dependencies') == 1 then return end
  local other, parent = parent_of(parent_key, read[3])
  if redis.call('ZREM', other .. 'waiting-children', parent) == 0 then return end
  if other == base then
    forget(base, parent)
  else
    wait_no_more(other, parent)
  end
end
