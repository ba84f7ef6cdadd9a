-- Part of scripts that take jobs out of `blocked`: count them out of their reason, and return how many are left.
local function discount(reason, number)
  local left = redis.call('HINCRBY', counts, reason, -number)
  if left <= 0 then redis.call('HDEL', counts, reason) end
  return left
end
