-- Part of scripts that lease jobs: read what is known of the earlier attempts of a feed.
-- `value`: what `set_returned` has written, or false. Returns how many attempts are not charged, whether a lease was
-- orphaned as `set_returned` describes it, and the id of the last attempt or empty; nil if nothing is known.
local function returned_of(value, feed)
  local last, uncharged, orphaned, previous = string.match(value or '', '^(%d+):(%d+):(%d):%d+:?([^:]*)$')
  if last == feed then return uncharged, orphaned, previous end
end
