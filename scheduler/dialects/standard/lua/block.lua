-- Part of finish: move jobs that were set aside to `blocked`.
-- A member of `blocked` is reason, 0x00, score and entry. A job with the reason type:<type> is parked: any worker with
-- a free slot for the type takes it.
local ids, members, states, numbers, seen = {}, {}, {}, {}, 0
for i = 3, #aside, 4 do if aside[i] then ids[#ids + 1] = aside[i] end end
local before = #ids > 0 and redis.call('HMGET', state, unpack(ids)) or {}
for i = 1, #aside, 4 do
  local entry, score, id, reason = aside[i], string.format('%016.0f', aside[i + 1]), aside[i + 2], aside[i + 3]
  members[#members + 1] = 0
  members[#members + 1] = reason .. '\0' .. score .. entry
  numbers[reason] = (numbers[reason] or 0) + 1
  if id then
    seen = seen + 1
    local counted = string.match(before[seen] or '', '^1:%a+:(%d+:%d+:%d+:%d:[^:]*)') or '0:0:0:0:'
    if not newer_format(before[seen] or '') then
      states[#states + 1] = id
      states[#states + 1] = '1:blocked:' .. counted .. ':' .. score .. ':' .. reason
    end
  end
end
redis.call('ZADD', blocked, unpack(members))
if #states > 0 then redis.call('HSET', state, unpack(states)) end
for reason, number in pairs(numbers) do
  redis.call('HINCRBY', counts, reason, number)
  if string.sub(reason, 1, 5) == 'type:' then signals[#signals + 1] = string.sub(reason, 6) end
end
is_blocked = true
