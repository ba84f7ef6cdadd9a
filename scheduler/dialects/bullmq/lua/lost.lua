-- Part of some: tell of a job whose worker was lost.
-- BullMQ's own workers have no name unless they are given one.
local function tell_lost(told, id, job)
  local began, sequence = job.processedOn or now, sequence_of(job)
  local token = {job.pb or 'bullmq', job.feed, attempts_of(job) + 1, job.ats or 0, began, '', sequence}
  tell_job(told, id, table.concat(token, ':'), job)
end
