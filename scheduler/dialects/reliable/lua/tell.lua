-- Part of finish: say ends to their ledgers.
-- After the results of each ledger its ends, a list as JSON. To cut them out one by one costs for each byte of them, so
-- that is done only if some are refused.
local answer, told = {}, {} -- for each result 1 or 0; for each ledger whether it is told all that there is for it

-- What most are, +ledger:feed:attempt:started, is read without a pattern. Returns what becomes of it, its delay, its
-- ledger, feed:attempt, and when it was taken.
local function read(head)
  if string.byte(head) == 43 then
    return 'completed', 0, string.byte(head, 2) - 48, string.sub(head, 4, -15), string.sub(head, -13)
  end
  local verb, delay, ledger, token = string.match(head, '^(%a+):(%d+):(%d+):(.*)$')
  return verb, tonumber(delay), tonumber(ledger), string.sub(token, 1, -15), string.sub(token, -13)
end

-- Returns the ends of a ledger without those that are refused.
local function accepted(wanted, text)
  local found, place = {}, 2
  for i = 1, count do
    local _, _, ledger = read(ARGV[5 * i + 6])
    local size = tonumber(ARGV[5 * i + 9])
    if ledger == wanted and size > 0 then
      if answer[i] == '1' then found[#found + 1] = string.sub(text, place, place + size - 1) end
      place = place + size + 1
    end
  end
  return #found > 0 and '[' .. table.concat(found, ',') .. ']'
end

local function tell()
  for ledger, all in pairs(told) do
    local ends = ARGV[9 + 5 * count + ledger]
    if not all then ends = accepted(ledger, ends) end
    if ends then redis.call('XADD', KEYS[20 + ledger], '*', 'ends', ends) end
  end
end
