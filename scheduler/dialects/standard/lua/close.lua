-- Part of finish: end or return deliveries.
local SMALL, LONG = 512, string.rep('-', 65) -- a small hash is searched from its beginning; a long value prevents that
local ended, stale, letters, retries, states, closed = {}, {}, {}, {}, {}, {}
local marked, numbers_of, ledger_of, kept = {}, {}, {}, {} -- jobs that get a mark; ids that are not over

local function close_one(id, verb, ledger, number, flag, token, lease, value, reason)
  ended[#ended + 1] = id
  local numbers = sub(token, 1, 4) == '1:1:' and '1:1' or string.match(token, '^(%d+:%d+):')
  if verb == 'return' or verb == 'retry' then
    kept[id] = true
    local score, charged, redelivered = string.match(lease, '^1:(%d+):%d+:(%d+):(%d):')
    if verb == 'return' then
      returned[#returned + 1] = score
      returned[#returned + 1] = value
      local epoch, attempt = string.match(numbers, '^(%d+):(%d+)$')
      if number == 0 then attempt = attempt - 1 end
      local counted = epoch .. ':' .. attempt .. ':' .. charged - 1 .. ':' .. (flag == '1' and flag or redelivered)
      states[#states + 1] = id
      states[#states + 1] = '1:waiting:' .. counted
    else
      restless = true
      retries[#retries + 1] = now + number
      retries[#retries + 1] = string.sub(value, 2)
      local counted = numbers .. ':' .. (flag == '1' and charged or charged - 1) .. ':' .. redelivered
      states[#states + 1] = id
      states[#states + 1] = '1:retrying:' .. counted .. ':' .. string.sub(value, 1, 1) .. ':' .. now + number
    end
    return
  end
  if verb == 'dead' or verb == 'unreadable' then letters[#letters + 1] = {value, reason} end
  if ledger > 0 then
    local place = #marked + 1
    marked[place] = id
    numbers_of[place] = numbers
    ledger_of[place] = ledger
  end
end

-- Returns the ids of jobs that are over, which are mostly all.
local function over()
  if not next(kept) then return ended end
  local found = {}
  for _, id in ipairs(ended) do if not kept[id] then found[#found + 1] = id end end
  return found
end

local function write()
  if #ended > 0 then
    redis.call('SREM', held, unpack(ended))
    redis.call('HDEL', leases, unpack(ended))
  end
  if #stale > 0 then redis.call('SREM', held, unpack(stale)) end
  if #ended + #stale == 0 then redis.call('PEXPIRE', KEYS[19], duration) end
  for _, letter in ipairs(letters) do bury(letter[1], letter[2]) end
  local gone, entries, marks = over(), publish(), {}
  if #gone > 0 then
    redis.call('HDEL', jobs, unpack(gone))
    if rare and redis.call('EXISTS', cancels, notes) > 0 then
      redis.call('HDEL', cancels, unpack(gone))
      redis.call('HDEL', notes, unpack(gone))
    end
  end
  for i = 1, #marked do
    marks[2 * i - 1] = marked[i]
    marks[2 * i] = '1:' .. numbers_of[i] .. ':' .. entries[ledger_of[i]]
  end
  if #marks > 0 then
    local spread = #marks > 16 and redis.call('HLEN', finished) < SMALL
    if spread then redis.call('HSET', finished, '', LONG) end
    redis.call('HSET', finished, unpack(marks))
    if spread then redis.call('HDEL', finished, '') end
  end
  if #retries > 0 then redis.call('ZADD', retrying, unpack(retries)) end
  if #states > 0 then
    rare = true
    redis.call('HSET', state, unpack(states))
  end
end

local function close()
  local found = redis.call('HMGET', leases, unpack(ARGV, FIRST + 1, FIRST + count))
  local value = PUBLISHED + 2 * ledgers
  for i = 1, count do
    local id, lease = ARGV[FIRST + i], found[i]
    local verb, ledger, number, flag, token = read(ARGV[FIRST + count + i])
    if not closed[id] and is_leased(lease, verb, token) then
      answer[i] = '1'
      closed[id] = true
      close_one(id, verb, ledger, number, flag, token, lease, ARGV[value + 1], ARGV[value + 2])
    else
      answer[i] = '0'
      if not lease or not newer_format(lease) and not string.find(lease, mine, 1, true) then stale[#stale + 1] = id end
    end
    value = value + (VALUES[verb] or 0)
    if ledger > 0 and verb ~= 'return' then complete[ledger] = complete[ledger] ~= false and answer[i] == '1' end
  end
  write()
  return table.concat(answer)
end
