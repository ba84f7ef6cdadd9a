-- Take failed jobs out, each if it is still there, and put them back into their queues.
-- KEYS[1] zset: scheduled; the names of all other keys begin as this does
-- ARGV[1] names: seed or upstream
-- ARGV[2..] 2 values for each: bytes, bytes to go on with or empty if it is only dropped
-- Returns 1 or 0 for each
-- include: names
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- include: wire
-- include: adding
local answer = {}
for i = 2, #ARGV, 2 do
  local job = ARGV[i + 1] ~= '' and read(ARGV[i + 1])
  local there = (job or ARGV[i + 1] == '') and redis.call('LREM', failed, -1, ARGV[i]) == 1
  if there and job and not push(job) then
    there = false
    redis.call('LPUSH', failed, ARGV[i])
  elseif there and job and job.parent then
    follow(job)
  end
  answer[#answer + 1] = there and '1' or '0'
end
return table.concat(answer)
