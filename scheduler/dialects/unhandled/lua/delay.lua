-- Part of scripts that return jobs with a delay.
-- Of jobs for whose type the worker has no handler, the returns are counted, and the delay grows with them.
-- Needs the local `now`, in ms. A zset has the returned jobs: the score is 8 times the due time in ms, plus the number
-- of returns, at most 7. A job leaves it with the next result of a worker that has a handler. Jobs that left the queue
-- by a foreign worker or were removed are forgotten an hour after they were due.
local FIRST_DELAY, MAX_DELAY, RETURNS, FORGET = 1000, 60000, 8, 3600000

-- Return the time at which a job is due. delay: in ms; nil or 0: count the return, and let the delay grow.
local function return_later(key, id, delay)
  if (delay or 0) > 0 then return now + delay end
  local returns = math.min(tonumber(redis.call('ZSCORE', key, id) or 0) % RETURNS + 1, RETURNS - 1)
  local due = now + math.min(FIRST_DELAY * 2 ^ (returns - 1), MAX_DELAY)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', (now - FORGET) * RETURNS)
  redis.call('ZADD', key, due * RETURNS + returns, id)
  redis.call('PEXPIRE', key, MAX_DELAY + FORGET)
  return due
end

-- Forget the returns of jobs that a worker with a handler has taken.
local function forget_returns(key, ids)
  if #ids > 0 and redis.call('EXISTS', key) == 1 then redis.call('ZREM', key, unpack(ids)) end
end
