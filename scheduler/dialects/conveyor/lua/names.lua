-- Part of all: the names of keys.
local base, seed = string.sub(KEYS[1], 1, -10), ARGV[1] == 'seed'
local scheduled, failed, bodies = KEYS[1], base .. 'failed', base .. (seed and 'jobs:' or 'job:')
local queues, active, workers = base .. (seed and '' or 'queue:'), base .. 'jobs:active', base .. 'workers:active'
local LEVELS, NORMAL = {'critical', 'high', 'normal', 'low', 'bulk'}, 2
local LIFETIME = 2592000 -- s: 30 days, after which what nobody came for is forgotten

-- A key that is named after a job may be somebody else's: what cannot be done to it is not done.
local function try(...)
  local answer = redis.pcall(...)
  local why = type(answer) == 'table' and answer.err
  if not why then return answer end
  return not string.find(why, 'WRONGTYPE', 1, true) and redis.call(...) or nil
end

local function ring_of(queue) return base .. 'ring:' .. queue .. ':' end
local function held_by(worker) return base .. 'worker:active:' .. worker end

local function list_of(queue, priority)
  if not priority or priority == NORMAL or not LEVELS[priority + 1] then return queues .. queue end
  return ring_of(queue) .. LEVELS[priority + 1]
end
