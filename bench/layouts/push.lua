-- Push jobs, on any layout of waiting jobs.
-- KEYS[1] prefix of the queue's keys
-- ARGV[1..] 5 values for each job: id, level (0 to 4), tenant, entry, record
local P, new = KEYS[1], {}
-- include
for i = 1, #ARGV, 5 do
  new[#new + 1] = ARGV[i]
  new[#new + 1] = ARGV[i + 4]
end
redis.call('HSET', P .. 'jobs', unpack(new))
put()
return #new / 2
