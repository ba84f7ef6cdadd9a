-- Forget ends that are in the ledger, and the jobs that ended.
-- KEYS[1] stream: outcomes of the ledger
-- KEYS[2] hash: fed, id -> feed:attempt of what the ledger has here
-- KEYS[3] hash: meta of the queue; the names of jobs begin as this does
-- ARGV[1] consumer group
-- ARGV[2] number of entries
-- ARGV[3..] ids of the entries, then id and feed:attempt of each job that has ended
-- Returns how many entries were there
local outcomes, fed, base = KEYS[1], KEYS[2], string.sub(KEYS[3], 1, -5)
local last = 2 + tonumber(ARGV[2])
for i = last + 1, #ARGV, 2 do
  local id, token = ARGV[i], ARGV[i + 1]
  if redis.call('HGET', base .. 'ring:finished', id) == token then
    local key = base .. id
    redis.call('HDEL', base .. 'ring:finished', id)
    redis.call('HDEL', fed, id)
    redis.call('ZREM', base .. 'completed', id)
    redis.call('ZREM', base .. 'failed', id)
    redis.call('UNLINK', key, key .. ':logs', key .. ':dependencies', key .. ':processed', key .. ':failed',
      key .. ':unsuccessful')
  end
end
redis.call('XACK', outcomes, ARGV[1], unpack(ARGV, 3, last))
return redis.call('XDEL', outcomes, unpack(ARGV, 3, last))
