-- Part of finish and renew: store which leases of a worker have begun, in the format of `attempts/begun`.
-- Each worker has a string of its own, which expires a week after its last renewal: nobody needs to look for marks of
-- dead workers. It stays as long as their retry policies do (`RetryDefaults`). The highest ordinal stays, because a call
-- can overtake another. A Redis without memory refuses the mark alone: an older one is still right about its leases.
local WEEK = 604800000

local function set_begun(mark)
  if mark == '' then return end
  local key = base .. 'ring:begun:' .. worker
  local before = string.match(redis.call('GET', key) or '', '^1:(%d+):')
  if tonumber(string.match(mark, '^1:(%d+):')) > tonumber(before or -1) then
    redis.pcall('SET', key, mark, 'PX', WEEK)
  end
end
