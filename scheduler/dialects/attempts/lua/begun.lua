-- Part of finish and renew: store which leases of a worker have begun.
-- A mark is format:ordinal:last sequence number:exceptions. The highest ordinal stays, because a call can overtake
-- another.
local function set_begun(key, name, mark)
  if mark == '' then return end
  local before = string.match(redis.call('HGET', key, name) or '', '^1:(%d+):')
  if tonumber(string.match(mark, '^1:(%d+):')) > tonumber(before or -1) then redis.call('HSET', key, name, mark) end
end
