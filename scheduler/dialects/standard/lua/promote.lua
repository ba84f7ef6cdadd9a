-- Part of finish: enqueue jobs whose retry is due.
local ids, names, entries, states = {}, {}, {}, {}
local due = redis.call('ZRANGEBYSCORE', retrying, '-inf', now, 'LIMIT', 0, wanted)
redis.call('ZREM', retrying, unpack(due))
for i, entry in ipairs(due) do ids[i] = id_of(entry) or '' end
for i, at in ipairs(redis.call('HMGET', state, unpack(ids))) do
  local counted, level = string.match(at or '', '^1:retrying:(%d+:%d+:%d+:%d:[^:]*):(%d):')
  local number = newer_format(due[i]) or newer_format(at or '')
  if number then
    for _, each in ipairs({due[i], 2 * SPAN, false, 'format:' .. number}) do aside[#aside + 1] = each end
  elseif not counted then
    letters[#letters + 1] = {due[i], 'the state of a job that waited for a retry is unreadable'}
  else
    names[#names + 1] = level .. ':' .. (string.match(due[i], '^1\31[^\31]*\31[^\31]*\31([^\31]*)') or '')
    entries[#entries + 1] = due[i]
    states[#states + 1] = ids[i]
    states[#states + 1] = '1:waiting:' .. counted
  end
end
if #states > 0 then redis.call('HSET', state, unpack(states)) end
enqueue(names, entries)
next_due = redis.call('ZRANGE', retrying, 0, 0, 'WITHSCORES')[2]
