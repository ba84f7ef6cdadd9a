-- Part of scripts that read marks of finished jobs: check that the result which a mark names is still in the stream.
-- Needs the local `outcomes`, the stream. A stream that was trimmed or deleted leaves marks behind. Such a job is
-- unknown, and can be pushed again. A mark that names no entry is of an earlier version, and is believed.
local found_entries = {}

local function has_result(mark)
  local entry = string.match(mark, '^%d+:%d+:(%d+%-%d+)$')
  if not entry then return true end
  if found_entries[entry] == nil then
    found_entries[entry] = #redis.call('XRANGE', outcomes, entry, entry) > 0
  end
  return found_entries[entry]
end
