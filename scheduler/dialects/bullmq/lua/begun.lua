-- Part of finish and renew: store which leases of a worker have begun, in the format of `attempts/begun`.
-- Each worker has its own string, which expires a week after the last renewal. So no script has to find the marks of
-- dead workers, and a mark lives as long as the retry policy of its worker (`RetryDefaults`). The highest ordinal
-- stays, because a call can overtake another. If Redis has no memory, only the mark is refused: an older one is valid.
local WEEK = 604800000

local function set_begun(mark)
  if mark == '' then return end
  local key = base .. 'ring:begun:' .. worker
  local stored = redis.pcall('GET', key) -- an error for what is no string
  local before = string.match(type(stored) == 'string' and stored or '', '^1:(%d+):')
  if tonumber(string.match(mark, '^1:(%d+):')) > tonumber(before or -1) then
    redis.pcall('SET', key, mark, 'PX', WEEK)
  end
end
