-- Part of finish: end or return deliveries, each if the worker holds its lease, and publish results to their ledgers.
-- A head is +ledger:token for a completed job of one of the first nine ledgers, else verb:ledger:number:flag:token. The
-- token is epoch:attempt:sequence. Ledgers count from 1; a job of ledger 0 has no result to publish. Verbs, and the
-- values that follow:
--   completed, cancelled
--   dead: the dead letter, and why
--   retry after `number` ms, flag 1 if the attempt is charged, 2 if it has not begun: level and entry, previous
--   return, number 0 if the attempt has not begun, flag 1 if this is the one redelivery of an orphaned lease that is
--     not charged: entry, previous
--   unreadable, with a sequence number as token: the dead letter, and why
--   drop: the worker does not lease the job any more
-- previous: the id of the last attempt that had begun, for the next one; empty: none.
-- For each ledger ARGV has its results as a JSON array, and their lengths. Cutting results out of the array costs time
-- for each byte, so it is done only if some of them are refused.
local VALUES = {dead = 2, retry = 2, ['return'] = 2, unreadable = 2}
local FILLER = ':' .. string.rep('-', 48) -- a mark is longer than 64 bytes: Redis searches small hashes of short values
local ledgers = #KEYS - 20
local PUBLISHED = FIRST + 2 * count + (tonumber(ARGV[11]) or 0) + 2 * tonumber(ARGV[12])
local value = PUBLISHED + 2 * ledgers
local gone, kept, stale, retries, states, closed = {}, {}, {}, {}, {}, {}
local marked, numbers_of, ledger_of = {}, {}, {} -- jobs that get a mark
local answer, complete = {}, {} -- for each result 1 or 0; for each ledger whether all its results are accepted
local sub, match = string.sub, string.match
local held_leases = redis.call('HMGET', leases, unpack(ARGV, FIRST + 1, FIRST + count))

for i = 1, count do
  local id, lease, head = ARGV[FIRST + i], held_leases[i], ARGV[FIRST + count + i]
  local verb, ledger, number, flag, token
  local sign, digit = string.byte(head, 1, 2)
  if sign == 43 then -- most are +ledger:token, which is read without a pattern
    verb, ledger, token = 'completed', digit - 48, sub(head, 4)
  else
    verb, ledger, number, flag, token = match(head, '^(%a+):(%d+):(%d+):(%d):(.*)$')
    ledger, number = tonumber(ledger), tonumber(number)
  end
  local score, charged, orphaned
  local is_leased = lease and not closed[id] and is_current(lease)
  if is_leased and verb == 'unreadable' then
    is_leased = string.find(lease, mine, 1, true) and sub(lease, -#token - 1) == ':' .. token
  elseif is_leased then
    is_leased = sub(lease, -#mine - #token) == mine .. token
  end
  if is_leased and (verb == 'return' or verb == 'retry') then
    score, charged, orphaned = match(lease, '^1:(%d+):%d+:(%d+):(%d):')
    is_leased = score ~= nil
    if recovering and orphaned == '0' then orphaned = '2' end
  end
  if is_leased then
    answer[i], closed[id] = '1', true
    local numbers = sub(token, 1, 4) == '1:1:' and '1:1' or match(token, '^(%d+:%d+):')
    if score then
      kept[#kept + 1] = id
      states[#states + 1] = id
    else
      gone[#gone + 1] = id
    end
    if verb == 'return' then
      returned[#returned + 1] = score
      returned[#returned + 1] = ARGV[value + 1]
      local epoch, attempt = match(numbers, '^(%d+):(%d+)$')
      if number == 0 then attempt = attempt - 1 end
      local counted = epoch .. ':' .. attempt .. ':' .. charged - 1 .. ':' .. (flag == '1' and flag or orphaned)
      states[#states + 1] = '1:waiting:' .. counted .. ':' .. ARGV[value + 2]
    elseif verb == 'retry' then
      restless = true
      retries[#retries + 1] = now + number
      retries[#retries + 1] = sub(ARGV[value + 1], 2)
      local epoch, attempt = match(numbers, '^(%d+):(%d+)$')
      if flag == '2' then attempt = attempt - 1 end
      local charges = flag == '1' and charged or charged - 1
      local counted = table.concat({epoch, attempt, charges, orphaned, ARGV[value + 2]}, ':')
      states[#states + 1] = '1:retrying:' .. counted .. ':' .. sub(ARGV[value + 1], 1, 1) .. ':' .. now + number
    else
      if verb == 'dead' or verb == 'unreadable' then letters[#letters + 1] = {ARGV[value + 1], ARGV[value + 2]} end
      if ledger > 0 then
        local place = #marked + 1
        marked[place] = id
        numbers_of[place] = numbers
        ledger_of[place] = ledger
      end
    end
  else
    answer[i] = '0'
    if not lease or not newer_format(lease) and not string.find(lease, mine, 1, true) then stale[#stale + 1] = id end
  end
  value = value + (VALUES[verb] or 0)
  if ledger > 0 and verb ~= 'return' then complete[ledger] = complete[ledger] ~= false and answer[i] == '1' end
end

for _, ids in ipairs({gone, kept}) do
  if #ids > 0 then
    redis.call('SREM', held, unpack(ids))
    redis.call('HDEL', leases, unpack(ids))
  end
end
if #stale > 0 then redis.call('SREM', held, unpack(stale)) end
if #gone + #kept + #stale == 0 then redis.call('PEXPIRE', KEYS[19], duration) end
local entries, marks = {}, {} -- for each ledger the id of the stream entry
for ledger, all in pairs(complete) do
  local text = ARGV[PUBLISHED + 2 * ledger - 1]
  if not all then
    local accepted, place = {}, 2
    for i, length in string.gmatch(ARGV[PUBLISHED + 2 * ledger], '(%d+):(%d+)') do
      if answer[tonumber(i)] == '1' then accepted[#accepted + 1] = sub(text, place, place + length - 1) end
      place = place + length + 1
    end
    text = #accepted > 0 and '[' .. table.concat(accepted, ',') .. ']'
  end
  if text then entries[ledger] = redis.call('XADD', KEYS[20 + ledger], '*', '1', text) end
end
if #gone > 0 then
  redis.call('HDEL', jobs, unpack(gone))
  if rare and redis.call('EXISTS', cancels, notes) > 0 then
    redis.call('HDEL', cancels, unpack(gone))
    redis.call('HDEL', notes, unpack(gone))
  end
end
for i = 1, #marked do
  marks[2 * i - 1] = marked[i]
  marks[2 * i] = '1:' .. numbers_of[i] .. ':' .. entries[ledger_of[i]] .. FILLER
end
if #marks > 0 then redis.call('HSET', finished, unpack(marks)) end
if #retries > 0 then redis.call('ZADD', retrying, unpack(retries)) end
if #states > 0 then
  rare = true
  redis.call('HSET', state, unpack(states))
end
answers = table.concat(answer)
