-- Count the jobs of a queue by where they are.
-- KEYS[1] hash: meta of the queue; the names of its other keys share their beginning
-- ARGV[1..] where: wait, active, paused, delayed, prioritized, completed, failed, waiting-children
-- Returns how many are in each
local base = string.sub(KEYS[1], 1, -5)
local answer = {}
for i, where in ipairs(ARGV) do
  local listed = where == 'wait' or where == 'active' or where == 'paused'
  answer[i] = redis.call(listed and 'LLEN' or 'ZCARD', base .. where)
end
return answer
