-- An attempt of a job is identified by its lease. The leases of attempts of earlier versions are unknown, so these attempts
-- are identified by their worker, feed and number.

ALTER TABLE job_queue ADD COLUMN previous_attempt_id uuid;
ALTER TABLE job_history
  DROP CONSTRAINT only_a_run_has_a_fence,
  ADD CONSTRAINT only_a_run_has_a_fence CHECK (kind = 'job'
    OR (fence IS NULL) = (kind = 'audit' OR outcome IN ('skipped', 'queued')));
