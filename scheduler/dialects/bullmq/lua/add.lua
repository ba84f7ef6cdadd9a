-- Add jobs, each as its options say.
-- KEYS[1] hash: meta of a queue; the names of its other keys, and of other queues in a flow, share their beginning
-- ARGV[1] compat: auto, 5 or 6
-- ARGV[2] now, in ms; empty: by the clock of Redis
-- ARGV[3..] 3 values for each job: {base, id or empty, name, timestamp, delay, priority, lifo, children, parent_key,
-- parent, dedup} as JSON, data as JSON, options as JSON
-- Returns for each its id, that of the job that stands for it, or -5: its parent does not exist, or -7: it is the child
-- of another parent
local compat, now = ARGV[1], tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local here = string.sub(KEYS[1], 1, -5)

-- include: queue
-- include: parents
-- include: store
-- include: dedup

local released = {}

-- A job with this id is there: it may get a parent, unless it has another that lives. If it has completed, the parent
-- goes on once those who follow are added: it may wait for them.
local function exists_already(base, id, job)
  local key = base .. id
  local other = redis.call('HGET', key, 'parentKey')
  if job.parent_key and other and other ~= job.parent_key and redis.call('EXISTS', other) == 1 then return -7 end
  if job.parent_key then
    redis.call('HSET', key, 'parentKey', job.parent_key, 'parent', job.parent)
    if redis.call('ZSCORE', base .. 'completed', id) then
      redis.call('HSET', job.parent_key .. ':processed', key, redis.call('HGET', key, 'returnvalue') or 'null')
      released[#released + 1] = {parent_of(job.parent_key, job.parent)}
    else
      redis.call('SADD', job.parent_key .. ':dependencies', key)
    end
  end
  say(base, 'duplicated', 'jobId', id)
  return id
end

local function add(head, data, opts)
  local base, rule = head.base or here, head.dedup
  if head.parent_key and redis.call('EXISTS', head.parent_key) == 0 then return -5 end
  facts(base)
  local id = tostring(redis.call('INCR', base .. 'id'))
  head.data, head.opts, head.timestamp = data, opts, head.timestamp or now
  head.parent = head.parent and cjson.encode(head.parent)
  if head.id and head.id ~= '' then
    id = head.id
    if redis.call('EXISTS', base .. id) == 1 then return exists_already(base, id, head) end
  end
  local other = rule and stands_for(base, id, head, rule)
  if other then return other end
  store(base, id, head)
  return id
end

local answer = {}
for i = 3, #ARGV, 3 do answer[#answer + 1] = add(cjson.decode(ARGV[i]), ARGV[i + 1], ARGV[i + 2]) end
for _, parent in ipairs(released) do go_on(parent[1], parent[2]) end
tell()
return answer
