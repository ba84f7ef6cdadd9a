-- Forget ends that are in the ledger, and the jobs that ended; that they did, a while later, for late pushes.
-- KEYS[1] stream: outcomes of the ledger
-- KEYS[2] hash: finished, id -> feed:attempt:stream entry of an end that is not settled
-- KEYS[3] hash: settled, id -> feed of what ended and was settled lately
-- KEYS[4] hash: the same of a while before
-- KEYS[5] hash: fed, id -> feed:attempt of what the ledger has here
-- KEYS[6] hash: meta of the queue; the names of jobs begin as this does
-- ARGV[1] consumer group
-- ARGV[2] number of entries
-- ARGV[3] how long at least it is known that a job was settled, in ms
-- ARGV[4..] ids of the entries, then id and feed:attempt of each job that has ended
-- Returns how many entries were there
local outcomes, finished, fed, base = KEYS[1], KEYS[2], KEYS[5], string.sub(KEYS[6], 1, -5)
local last = 3 + tonumber(ARGV[2])

-- include: settling/remember

local feeds = {}
local function remember_some(at_least)
  if #feeds < at_least then return end
  remember(KEYS[3], KEYS[4], tonumber(ARGV[3]), feeds)
  feeds = {}
end

for i = last + 1, #ARGV, 2 do
  local id, token = ARGV[i], ARGV[i + 1]
  local mark = redis.call('HGET', finished, id)
  -- A mark of an earlier version names no stream entry.
  if mark and (string.sub(mark, 1, #token + 1) == token .. ':' or mark == token) then
    local key = base .. id
    redis.call('HDEL', finished, id) -- first, for it asks for no memory: so a full Redis refuses neither
    feeds[#feeds + 1] = id
    feeds[#feeds + 1] = string.match(token, '^(%d+)')
    remember_some(1000)
    redis.call('HDEL', fed, id)
    redis.call('ZREM', base .. 'completed', id)
    redis.call('ZREM', base .. 'failed', id)
    redis.call('UNLINK', key, key .. ':logs', key .. ':dependencies', key .. ':processed', key .. ':failed',
      key .. ':unsuccessful')
  end
end
remember_some(1)
redis.call('XACK', outcomes, ARGV[1], unpack(ARGV, 4, last))
return redis.call('XDEL', outcomes, unpack(ARGV, 4, last))
