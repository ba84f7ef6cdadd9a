-- Triggers, pauses and live instances. Instances of the version before go on with it; one that ends a triggered run leaves
-- job_lock.triggered as it was, which the next claim sets anew.

ALTER TABLE job_lock ADD COLUMN triggered boolean NOT NULL DEFAULT false;
ALTER TABLE job_lock DROP CONSTRAINT IF EXISTS a_fire_under_way_was_given_out;
ALTER TABLE job_lock ADD CONSTRAINT a_fire_under_way_was_given_out
  CHECK (fire_at IS NULL OR triggered
    OR coalesce(last_fire_at >= fire_at, false));

ALTER TABLE job_history DROP CONSTRAINT IF EXISTS job_history_kind_check;
ALTER TABLE job_history ADD CONSTRAINT job_history_kind_check CHECK (kind IN ('fire', 'trigger', 'audit'));
ALTER TABLE job_history DROP CONSTRAINT IF EXISTS job_history_outcome_check;
ALTER TABLE job_history ADD CONSTRAINT job_history_outcome_check CHECK (outcome IN
  ('success', 'failed', 'timeout', 'crashed', 'skipped', 'registered', 'changed', 'unregistered', 'paused', 'resumed'));
ALTER TABLE job_history DROP CONSTRAINT IF EXISTS audit_is_not_a_fire;
ALTER TABLE job_history ADD CONSTRAINT audit_is_not_a_fire CHECK ((kind = 'audit') = (outcome IN
  ('registered', 'changed', 'unregistered', 'paused', 'resumed')));
ALTER TABLE job_history DROP CONSTRAINT IF EXISTS only_a_run_has_a_fence;
ALTER TABLE job_history ADD CONSTRAINT only_a_run_has_a_fence CHECK ((fence IS NULL) = (outcome IN
  ('skipped', 'registered', 'changed', 'unregistered', 'paused', 'resumed')));

-- Live instances, and what each can run: for explain() and for the alarm that nobody can run a job.
CREATE TABLE job_instance (
  id         uuid          PRIMARY KEY,   -- the owner of its leases
  label      text          NOT NULL,
  started_at timestamptz   NOT NULL,
  seen_at    timestamptz   NOT NULL,
  expires_at timestamptz   NOT NULL,      -- later than that it counts as gone
  skew       interval      NOT NULL,      -- how far its wall clock is ahead of this server's
  tenants    text[]        NOT NULL,      -- with ids: the jobs whose functions it has
  ids        text[]        NOT NULL,
  CONSTRAINT each_job_has_a_tenant CHECK (cardinality(tenants) = cardinality(ids))
) WITH (fillfactor = 50);
