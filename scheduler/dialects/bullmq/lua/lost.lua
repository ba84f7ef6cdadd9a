-- Part of some: tell of a job whose worker was lost.
-- BullMQ's own workers have no name unless they are given one.
-- marks: id and begun mark of the job are appended if the field `lease` describes the last lease, and its worker has
-- reported a mark. A worker of BullMQ counts its start in `ats` and writes no `lease`. Without a name it leaves `pb` as
-- it was.
local function tell_lost(told, marks, id, job)
  local began, sequence = string.match(job.processedOn or '', '^%d+$') or now, sequence_of(job)
  local has_sequence = job.pb and string.match(job.lease or '', '^(%d+):%d+$') == job.ats
  local mark = has_sequence and redis.pcall('GET', base .. 'ring:begun:' .. job.pb)
  if type(mark) == 'string' then
    marks[#marks + 1] = id
    marks[#marks + 1] = mark
  end
  local token = {job.pb or 'bullmq', job.feed, attempts_of(job) + 1, job.ats or 0, began, '', sequence}
  tell_job(told, id, table.concat(token, ':'), job)
end
