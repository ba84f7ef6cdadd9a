-- The ledger keeps when a job was scheduled. `updated_at` of a live job is the time of its last state change alone.

ALTER TABLE job_history ADD COLUMN scheduled_at timestamptz;
ALTER TABLE job_queue ADD COLUMN fed_again_at timestamptz;
