-- Say which workers live and what they say of themselves, those who are silent last first.
-- KEYS[1] zset: workers by when they are silent, in ms
-- ARGV[1] what the names of the keys begin with in which they say it, before their own; in a cluster beside KEYS[1]
-- ARGV[2] most of them
-- Returns the time in ms, how many live, then for each its name and what it says, or nothing
local said, time = ARGV[1], redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local answer = {now, redis.call('ZCOUNT', KEYS[1], now, '+inf')}
for _, name in ipairs(redis.call('ZREVRANGEBYSCORE', KEYS[1], '+inf', now, 'LIMIT', 0, ARGV[2])) do
  answer[#answer + 1] = name
  answer[#answer + 1] = redis.call('GET', said .. name) or ''
end
return answer
