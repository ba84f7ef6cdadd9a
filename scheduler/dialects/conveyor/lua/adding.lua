-- Part of some: Add, in the order of its specification; each step is a function of its own.
local ENQUEUED, RUNNING, COMPLETED, FAILED = '\96\1', '\96\2', '\96\3', '\96\4' -- field 12 of a job

-- In a cluster, where the namespace has a hash tag, whoever listens may do it at another server.
local listened = string.find(base, '{', 1, true) or redis.call('PUBSUB', 'NUMSUB', base .. 'events')[2] > 0
local function say(raw, status)
  if listened and raw then redis.call('PUBLISH', base .. 'events', raw .. status) end
end
local function seconds(ms) return string.format('%.3f', ms / 1000) end

local function add_to_list(key, raw)
  redis.call('LPUSH', key, raw)
  redis.call('EXPIRE', key, LIFETIME)
end

local function add_to_parent(job)
  add_to_list(bodies .. job.parent .. ':children', job.raw)
  return 'c'
end

local function add_to_predecessor(job)
  add_to_list(bodies .. job.predecessor .. ':onComplete', job.raw)
  return 'o'
end

local function schedule(job)
  redis.call('ZADD', scheduled, seconds(due_of(job) or 0), job.raw)
  return 's'
end

-- The parent is past its own run, and waits for this one.
local function follow(job)
  if try('SADD', bodies .. job.parent .. ':active', job.uuid) then
    redis.call('EXPIRE', bodies .. job.parent .. ':active', LIFETIME)
  end
  return 'a'
end

-- Returns nothing where its queue is something else.
local function push(job)
  if not try('LPUSH', list_of(job.queue, job.priority), job.raw) then return nil end
  say(job.raw, ENQUEUED)
  return 'q'
end

-- A scheduled child is followed too, or its parent would be closed too early: that is our one deviation.
local function add(job, dead)
  if job.parent and not dead then return add_to_parent(job) end
  if job.predecessor and not dead then return add_to_predecessor(job) end
  local place = (due_of(job) or 0) > now and schedule(job) or push(job)
  if place and job.parent then follow(job) end
  return place
end
