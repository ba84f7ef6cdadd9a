-- Wake one worker that waits at each wake-up list.
-- KEYS[1] list: wake-up list of a type; more follow
-- ARGV[1] lifetime of a signal that no worker receives, in ms
-- Returns nothing
for _, list in ipairs(KEYS) do
  if redis.call('EXISTS', list) == 0 then
    redis.call('LPUSH', list, '1')
    redis.call('PEXPIRE', list, ARGV[1])
  end
end
