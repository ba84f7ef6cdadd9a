-- Part of finish: read the heads of results.
-- A head is +ledger:token for a completed job of one of the first nine ledgers, else verb:ledger:number:flag:token. The
-- token is epoch:attempt:sequence. Ledgers count from 1; a job of ledger 0 has no result to publish. Verbs, and the
-- values that follow:
--   completed, cancelled
--   dead: the dead letter, and why
--   retry after `number` ms, flag 1 if the attempt is charged: level and entry
--   return, number 0 if the attempt has not begun, flag 1 if this is the one redelivery of an orphaned lease that is
--     not charged: entry
--   unreadable, with a sequence number as token: the dead letter, and why
--   drop: the worker does not lease the job any more
local VALUES = {dead = 2, retry = 1, ['return'] = 1, unreadable = 2}
local sub = string.sub

-- Returns verb, ledger, number, flag and token of a head. Most are +ledger:token, which is read without a pattern.
local function read(head)
  local sign, number = string.byte(head, 1, 2)
  if sign == 43 then return 'completed', number - 48, 0, '1', sub(head, 4) end
  local verb, ledger, value, flag, token = string.match(head, '^(%a+):(%d+):(%d+):(%d):(.*)$')
  return verb, tonumber(ledger), tonumber(value), flag, token
end

-- Whether the worker holds the lease that a result ends.
local function is_leased(lease, verb, token)
  if not lease or not is_current(lease) then return false end
  if (verb == 'return' or verb == 'retry') and not string.find(lease, '^1:%d+:%d+:%d+:%d:') then return false end
  if verb ~= 'unreadable' then return sub(lease, -#mine - #token) == mine .. token end
  return string.find(lease, mine, 1, true) and sub(lease, -#token - 1) == ':' .. token
end
