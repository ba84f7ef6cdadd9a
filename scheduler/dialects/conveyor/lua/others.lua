-- Name workers of Conveyor's own that live, those heard last first.
-- KEYS[1] zset: scheduled; the names of all other keys begin as this does
-- ARGV[1] names: seed or upstream
-- ARGV[2] most of them
-- Returns for each its name, when it was heard, in s, and how many jobs it has
-- include: names
local now, answer = redis.call('TIME')[1], {}

-- Ours are in the registry of their queue, whose name is behind theirs.
local function ours(name)
  local queue = string.match(name, '^[^:]+:(.+)$')
  return queue and try('ZSCORE', ring_of(queue) .. 'workers', name)
end

local heard = redis.call('ZREVRANGEBYSCORE', workers, '+inf', now - 30, 'WITHSCORES', 'LIMIT', 0, ARGV[2])
for i = 1, #heard, 2 do
  local name = heard[i]
  if not ours(name) then
    answer[#answer + 1] = {name, heard[i + 1], try('SCARD', held_by(name)) or 0}
  end
end
return answer
