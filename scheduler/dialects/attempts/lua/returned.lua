-- Part of scripts that return jobs: remember what the next attempt of a job has to know of those before.
-- Needs the local `now`, in ms. A hash has the jobs that will run again after an attempt of theirs had begun or a lease
-- was orphaned: id -> feed:uncharged:orphaned:time in ms:previous. uncharged: how many attempts are not charged.
-- orphaned: 0, 1 after an orphaned lease was redelivered uncharged, or 2 if orphaned leases were only charged.
-- previous: the id of the last attempt that had begun, or empty. A job leaves the hash when it is over. Foreign workers
-- end jobs of no ledger, whose feed is 0, without that: a week later such a job is forgotten, when another one is
-- written.
local SAMPLE, FORGET = 4, 604800000

local function set_returned(key, id, feed, uncharged, orphaned, previous)
  local last, before = string.match(redis.call('HGET', key, id) or '', '^(%d+):%d+:(%d):')
  if last == feed and (before == '1' or orphaned == '0') then orphaned = before end
  redis.call('HSET', key, id, table.concat({feed, uncharged, orphaned, string.format('%.0f', now), previous}, ':'))
  local found = redis.call('HRANDFIELD', key, SAMPLE, 'WITHVALUES')
  for i = 1, #found, 2 do
    local at = string.match(found[i + 1], '^0:%d+:%d:(%d+)')
    if at and now - at > FORGET then redis.call('HDEL', key, found[i]) end
  end
end
