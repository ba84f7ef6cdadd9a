-- Queue files that are not queued yet, as many as the rate allows at this moment.
-- KEYS[1] list: level critical
-- KEYS[2] list: level high
-- KEYS[3] list: level normal
-- KEYS[4] list: level low
-- KEYS[5] list: level bulk
-- KEYS[6] hash: origins, id -> list that the file was put in; since -> when the hash was begun, in ms
-- KEYS[7] hash: origins before, the same of the time before
-- KEYS[8] list: marker, for those who wait
-- KEYS[9] string: rate, until when the rate is used up, in us
-- ARGV[1] most files a second of all producers; 0: any number
-- ARGV[2] how long a file that is not seen any more is remembered at least, in ms
-- ARGV[3..] 3 values for each file: id, number of its level, entry
-- Returns {n (new), k (known) or w (the rate is used up) for each; us until it is worth to come again}
local origins, before, marker, rate_key = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local rate, kept = tonumber(ARGV[1]), tonumber(ARGV[2])
local BURST = 100000 -- us: so late may one come without a loss; and so much more than the rate may come at once
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local interval, most, used_until, allowed = 0, 0, now, math.huge
if rate > 0 then
  interval = 1000000 / rate
  most = interval + BURST
  local told = tonumber(redis.call('GET', rate_key) or 0) or 0
  used_until = math.min(math.max(told, now), now + most) -- further ahead it is only if the clock was set back
  allowed = math.floor((now + most - used_until) / interval)
end

local ids = {}
for i = 1, (#ARGV - 2) / 3 do ids[i] = ARGV[3 * i] end
local since = tonumber(redis.call('HGET', origins, 'since') or now / 1000)
if now / 1000 - since >= kept then
  redis.call('UNLINK', before)
  redis.call('RENAME', origins, before)
  since = now / 1000
end
local known = redis.call('HMGET', origins, unpack(ids))
local older = redis.call('EXISTS', before) == 1 and redis.call('HMGET', before, unpack(ids)) or {}

local answer, lists, put, waiting, met = {}, {}, 0, 0, {}
local written = {'since', string.format('%.0f', since)}
local function write(id, origin)
  written[#written + 1] = id
  written[#written + 1] = origin
end
for i, id in ipairs(ids) do
  local level, entry = tonumber(ARGV[3 * i + 1]), ARGV[3 * i + 2]
  if known[i] or older[i] or met[id] then
    answer[i] = 'k'
    if not known[i] and older[i] then write(id, older[i]) end
  elseif put < allowed then
    answer[i], put, met[id] = 'n', put + 1, true
    lists[level] = lists[level] or {}
    table.insert(lists[level], entry)
    write(id, KEYS[level])
  else
    answer[i], waiting = 'w', waiting + 1
  end
end

-- Lists first: what one of them refuses is not remembered.
for level, entries in pairs(lists) do redis.call('LPUSH', KEYS[level], unpack(entries)) end
redis.call('HSET', origins, unpack(written))
redis.call('PEXPIRE', origins, 2 * kept)
if put > 0 and redis.call('EXISTS', marker) == 0 then redis.call('LPUSH', marker, '1') end
used_until = used_until + put * interval
if used_until > now then
  redis.call('SET', rate_key, string.format('%.0f', used_until), 'PX', math.ceil((used_until - now) / 1000) + 1)
end
if waiting == 0 then return {table.concat(answer), 0} end
local worth = math.min(waiting, math.max(1, math.floor(most / interval / 2)))
return {table.concat(answer), math.ceil(used_until + worth * interval - most - now)}
