-- Part of all that acknowledge or withdraw: remember for `while_` ms at least which jobs are over, each with its feed.
local function remember(settled, before, while_, feeds)
  local left = redis.call('PTTL', settled)
  if left > 0 and left < 5 * while_ then
    redis.call('RENAME', settled, before)
    redis.call('PEXPIRE', before, 2 * while_)
  end
  redis.call('HSET', settled, unpack(feeds))
  if redis.call('PTTL', settled) < 0 then redis.call('PEXPIRE', settled, 6 * while_) end
end
