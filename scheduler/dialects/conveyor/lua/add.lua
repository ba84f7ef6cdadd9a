-- Add jobs, as their specification has it.
-- KEYS[1] zset: scheduled; the names of all other keys begin as this does
-- ARGV[1] names: seed or upstream
-- ARGV[2] add; dead: add with a parent that is past its run; or the number of one step: 1 to its parent, 2 to its
-- predecessor, 3 schedule, 4 follow as the child of a dead parent, 5 push
-- ARGV[3..] bytes of each job
-- Returns for each where it went: c (children), o (onComplete), s (scheduled), a (active children), q (queue); x: it is
-- no job; w: its queue is something else
-- include: names
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- include: wire
-- include: adding
local steps = {add_to_parent, add_to_predecessor, schedule, follow, push}
local step, answer = steps[tonumber(ARGV[2])], {}
for i = 3, #ARGV do
  local job = read(ARGV[i])
  local place = job and (step and step(job) or not step and add(job, ARGV[2] == 'dead'))
  answer[#answer + 1] = not job and 'x' or place or 'w'
end
return table.concat(answer)
