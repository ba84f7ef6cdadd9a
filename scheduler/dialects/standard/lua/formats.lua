-- Part of scripts that read stored values: recognise the format of a value.
-- A value begins with its format number and a separator, 0x1F in entries and a colon elsewhere. This version writes and
-- reads format 1. A value of a newer format is not decoded, changed or dropped; its number is reported to the caller.
local newer = {}

local function is_current(value)
  local number, separator = string.byte(value, 1, 2)
  return number == 49 and (separator == 58 or separator == 31)
end

-- Returns the number of a newer format; nil: the value has this format, or it is unreadable.
local function newer_format(value)
  local number = tonumber(string.match(value, '^(%d%d?%d?%d?)[:\31]'))
  if not number or number < 2 then return nil end
  newer[number] = true
  return number
end

-- Returns the numbers of newer formats that this call met.
local function newer_formats()
  local found = {}
  for number in pairs(newer) do found[#found + 1] = number end
  return found
end
