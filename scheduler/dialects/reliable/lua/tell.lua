-- Part of finish: say ends to their ledgers.
-- After the results of each ledger its ends, a list as JSON. To cut them out one by one costs for each byte of them, so
-- that is done only if some are refused.
local byte, sub, find = string.byte, string.sub, string.find
local answer, told = {}, {} -- for each result 1 or 0; for each ledger whether it is told all that there is for it

-- What most are, +ledger:feed:attempt@started:sequence, is read without a pattern. Returns what becomes of it, its
-- delay, its ledger, feed:attempt, started:sequence, and of a job that will run again how many attempts are not charged
-- and the id of the last one; both are empty if that has not changed.
local function read(head)
  if byte(head) == 43 then
    local stop = find(head, '@', 4, true)
    return 'completed', 0, byte(head, 2) - 48, sub(head, 4, stop - 1), sub(head, stop + 1)
  end
  local verb, delay, ledger, uncharged, previous, token, lease =
    string.match(head, '^(%a+):(%d+):(%d+):(%d*):([^:]*):([^@]*)@(.*)$')
  return verb, tonumber(delay), tonumber(ledger), token, lease, uncharged, previous
end

-- Returns the ends of a ledger without those that are refused.
local function accepted(wanted, text)
  local found, place = {}, 2
  for i = 1, count do
    local _, _, ledger = read(ARGV[5 * i + 9])
    local size = tonumber(ARGV[5 * i + 12])
    if ledger == wanted and size > 0 then
      if answer[i] == '1' then found[#found + 1] = sub(text, place, place + size - 1) end
      place = place + size + 1
    end
  end
  return #found > 0 and '[' .. table.concat(found, ',') .. ']'
end

-- Returns for each ledger the stream entry of its ends.
local function tell()
  local entries = {}
  for ledger, all in pairs(told) do
    local ends = ARGV[12 + 5 * count + ledger]
    if not all then ends = accepted(ledger, ends) end
    if ends then entries[ledger] = redis.call('XADD', KEYS[23 + ledger], '*', 'ends', ends) end
  end
  return entries
end
