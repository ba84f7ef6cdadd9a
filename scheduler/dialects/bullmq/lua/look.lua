-- Read jobs, and where they are.
-- KEYS[1] hash: meta of the queue; the names of its other keys share their beginning
-- ARGV[1..] ids
-- Returns for each {its state or empty, its fields and their values, the same of the values of its children}, or nil
local base = string.sub(KEYS[1], 1, -5)

local function state(id)
  for _, where in ipairs({'completed', 'failed', 'delayed', 'prioritized', 'waiting-children'}) do
    if redis.call('ZSCORE', base .. where, id) then return where end
  end
  for _, where in ipairs({'active', 'wait', 'paused'}) do
    if redis.call('LPOS', base .. where, id) then return where end
  end
  return ''
end

local answer = {}
for i, id in ipairs(ARGV) do
  local fields = redis.call('HGETALL', base .. id)
  answer[i] = #fields > 0 and {state(id), fields, redis.call('HGETALL', base .. id .. ':processed')}
end
return answer
