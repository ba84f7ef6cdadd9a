-- Part of finish: publish results to their ledgers.
-- For each ledger ARGV has its results as a JSON array, and their lengths. Cutting results out of the array costs time
-- for each byte, so it is done only if some of them are refused.
local answer, complete = {}, {} -- for each result 1 or 0; for each ledger whether all its results are accepted
local ledgers = #KEYS - 19
local PUBLISHED = FIRST + 2 * count + (tonumber(ARGV[11]) or 0) + 2 * tonumber(ARGV[12])

-- Returns the results of a ledger without those that are refused.
local function accepted(text, lengths)
  local found, place = {}, 2
  for i, length in string.gmatch(lengths, '(%d+):(%d+)') do
    if answer[tonumber(i)] == '1' then found[#found + 1] = string.sub(text, place, place + length - 1) end
    place = place + length + 1
  end
  return #found > 0 and '[' .. table.concat(found, ',') .. ']'
end

-- Returns for each ledger the id of the stream entry.
local function publish()
  local entries = {}
  for ledger, all in pairs(complete) do
    local text = ARGV[PUBLISHED + 2 * ledger - 1]
    if not all then text = accepted(text, ARGV[PUBLISHED + 2 * ledger]) end
    if text then entries[ledger] = redis.call('XADD', KEYS[19 + ledger], '*', '1', text) end
  end
  return entries
end
