-- Pause a queue, or let it go on: while it is paused nobody takes a job out of it.
-- KEYS[1] hash: meta of the queue; the names of its other keys share their beginning
-- ARGV[1] compat: auto, 5 or 6
-- ARGV[2] paused or resumed
-- Returns 1
local compat, wanted = ARGV[1], ARGV[2]
local now = 0
local base = string.sub(KEYS[1], 1, -5)

-- include: queue

local function join(from, to, side)
  if redis.call('EXISTS', from) == 0 then return end
  if redis.call('EXISTS', to) == 0 then
    redis.call('RENAME', from, to)
    return
  end
  while redis.call('LMOVE', from, to, side == 'LEFT' and 'RIGHT' or 'LEFT', side) do end
end

if wanted == 'paused' then
  -- Version 5 puts this list in place of the other when it resumes: nothing may be left there.
  if facts(base).five then join(base .. 'wait', base .. 'paused', 'LEFT') end
  redis.call('HSET', KEYS[1], 'paused', 1)
  redis.call('DEL', base .. 'marker')
else
  redis.call('HDEL', KEYS[1], 'paused')
  facts(base)
  join(base .. 'paused', base .. 'wait', 'RIGHT')
  ready[base] = redis.call('EXISTS', base .. 'wait', base .. 'prioritized') > 0 or nil
  later[base] = not ready[base] or nil
end
say(base, wanted)
tell()
return 1
