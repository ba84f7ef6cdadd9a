-- Part of scripts that lease jobs: read how many attempts of a feed are not charged, or nil if none was counted.
-- `value`: what `set_uncharged` has written, or false.
local function uncharged_of(value, feed)
  local last, uncharged = string.match(value or '', '^(%d+):(%d+):')
  return last == feed and uncharged or nil
end
