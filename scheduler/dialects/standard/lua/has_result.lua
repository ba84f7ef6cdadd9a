-- Part of scripts that read marks of finished jobs: check that the result which a mark names is still in the stream.
-- A stream that was trimmed or deleted leaves marks behind. Such a job is unknown, and can be pushed again.
local found = {}

local function has_result(mark)
  if not is_current(mark) then return newer_format(mark) ~= nil end
  local entry = string.match(mark, '^1:%d+:%d+:(%d+%-%d+)')
  if not entry then return false end
  if found[entry] == nil then found[entry] = #redis.call('XRANGE', results, entry, entry) > 0 end
  return found[entry]
end
