-- Part of some: tell of a job whose worker was lost.
-- BullMQ's own workers have no name unless they are given one.
-- marks: id and begun mark of the job are appended if its last lease is one of ours, and the worker reported a mark. A
-- worker of BullMQ counts the start in `ats` and does not write `lease`, but without a name it leaves our name in `pb`.
local function tell_lost(told, marks, id, job)
  local began, sequence = job.processedOn or now, sequence_of(job)
  local is_ours = job.pb and string.match(job.lease or '', '^(%d+):%d+$') == job.ats
  local mark = is_ours and redis.call('GET', base .. 'ring:begun:' .. job.pb)
  if mark then
    marks[#marks + 1] = id
    marks[#marks + 1] = mark
  end
  local token = {job.pb or 'bullmq', job.feed, attempts_of(job) + 1, job.ats or 0, began, '', sequence}
  tell_job(told, id, table.concat(token, ':'), job)
end
