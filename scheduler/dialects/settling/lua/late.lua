-- Part of all that push: whether a push comes too late; `until_ms` empty: never.
local function late(until_ms)
  if until_ms == '' then return false end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000) > tonumber(until_ms)
end

-- Whoever was suspended, or is heard late, may say what others have said and seen the end of: the last feed of each
-- job that was settled lately, or false.
local function settled_lately(settled, before, ids)
  local last, earlier = redis.call('HMGET', settled, unpack(ids)), redis.call('HMGET', before, unpack(ids))
  for i = 1, #ids do last[i] = tonumber(last[i] or earlier[i] or nil) or false end
  return last
end
