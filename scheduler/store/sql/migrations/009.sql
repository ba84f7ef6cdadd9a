-- A recurring job has its newest fire and fence in job too, so that a claim can insert a deleted lock row. The lock row of
-- a job that runs at most once records whether its function was about to be called.

ALTER TABLE job ADD COLUMN last_fire_at timestamptz;
ALTER TABLE job ADD COLUMN fence bigint NOT NULL DEFAULT 0 CHECK (fence >= 0);
UPDATE job j SET last_fire_at = l.last_fire_at, fence = l.fence FROM job_lock l WHERE l.tenant = j.tenant AND l.id = j.id;
ALTER TABLE job_lock ADD COLUMN begun boolean;
