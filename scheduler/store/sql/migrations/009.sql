-- A recurring job remembers its newest fire and fence beside its lock row, so that a deleted lock row is made anew. The
-- lock row of a job that runs at most once says whether its function was about to be called.

ALTER TABLE job ADD COLUMN last_fire_at timestamptz;
ALTER TABLE job ADD COLUMN fence bigint NOT NULL DEFAULT 0 CHECK (fence >= 0);
UPDATE job j SET last_fire_at = l.last_fire_at, fence = l.fence FROM job_lock l WHERE l.tenant = j.tenant AND l.id = j.id;
ALTER TABLE job_lock ADD COLUMN begun boolean;
