-- An attempt of a job is identified by its lease. Attempts of earlier versions, whose leases are unknown, by their worker
-- and number.

ALTER TABLE job_queue ADD COLUMN previous_attempt_id uuid;
ALTER TABLE job_history
  DROP CONSTRAINT only_a_run_has_a_fence,
  ADD CONSTRAINT only_a_run_has_a_fence CHECK (kind = 'job'
    OR (fence IS NULL) = (kind = 'audit' OR outcome IN ('skipped', 'queued')));
