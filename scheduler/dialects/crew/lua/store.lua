-- Store a value that a worker has to leave behind, for a while.
-- KEYS[1] string: the value
-- ARGV[1] the value
-- ARGV[2] how long it is kept, in ms
-- Returns nothing
redis.call('PEXPIRE', KEYS[1], ARGV[2]) -- needs no memory, so a full Redis does not refuse the write after it
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
