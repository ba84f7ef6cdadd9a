-- Let others read ends at once that one settler has read and will not settle.
-- KEYS[1] stream: outcomes
-- ARGV[1] consumer group
-- ARGV[2] consumer
-- ARGV[3] for how long they shall seem to have been in its hands, in ms
-- ARGV[4..] ids of the entries
-- Returns how many were still in its hands
local args = {unpack(ARGV, 4)}
args[#args + 1] = 'IDLE'
args[#args + 1] = ARGV[3]
args[#args + 1] = 'JUSTID'
return #redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, unpack(args))
