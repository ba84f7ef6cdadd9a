-- The whole schema, version 2. Applied by `initialise()` or `scheduler migrate` into its own Postgres schema
-- (search_path is set around it); a database of an earlier version is brought here by store/sql/migrations.
-- Names are compared bytewise (COLLATE "C"): every instance then locks rows in one and the same order.

CREATE TABLE schema_version (
  version    integer     PRIMARY KEY,
  applied_at timestamptz NOT NULL DEFAULT now()
);

-- What was registered. No index on next_run_at: instances find what is due in their mirror, and updates stay HOT.
CREATE TABLE job (
  tenant      text COLLATE "C" NOT NULL CHECK (length(tenant) BETWEEN 1 AND 200),
  id          text COLLATE "C" NOT NULL CHECK (length(id) BETWEEN 1 AND 200),
  spec        jsonb            NOT NULL CHECK (jsonb_typeof(spec) = 'object'),
  spec_hash   bytea            NOT NULL CHECK (octet_length(spec_hash) = 32),
  delivery    text             NOT NULL CHECK (delivery IN ('at_least_once', 'at_most_once')),
  overlap     text             NOT NULL CHECK (overlap IN ('skip', 'queue_one')),
  next_run_at timestamptz,                -- NULL: nothing to come (a one-time job that has fired)
  trigger_at  timestamptz,
  paused_at   timestamptz,
  created_at  timestamptz      NOT NULL,
  updated_at  timestamptz      NOT NULL,
  PRIMARY KEY (tenant, id)
) WITH (fillfactor = 50);

-- The lease on one job's running fire: one row a job, updated and never deleted, so that the fence only grows and
-- a fire at or before last_fire_at is never run again, whatever becomes of the job row.
CREATE TABLE job_lock (
  tenant       text COLLATE "C" NOT NULL,
  id           text COLLATE "C" NOT NULL,
  fence        bigint           NOT NULL DEFAULT 0 CHECK (fence >= 0),
  last_fire_at timestamptz,
  owner        uuid,                      -- the process that holds the lease; NULL: free
  fire_at      timestamptz,               -- the fire under way
  created_at   timestamptz,               -- when this lease was taken
  expires_at   timestamptz,
  starts       integer          NOT NULL DEFAULT 0 CHECK (starts >= 0),
  description  text,                      -- the holder's label
  missed_from  timestamptz,
  missed_count bigint           NOT NULL DEFAULT 0 CHECK (missed_count >= 0),
  attempts     jsonb            NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(attempts) = 'array'),
  triggered    boolean          NOT NULL DEFAULT false,  -- the fire under way was asked for, it is not of the schedule
  PRIMARY KEY (tenant, id),
  CONSTRAINT held_whole_or_not_at_all CHECK (
    num_nonnulls(owner, fire_at, created_at, expires_at) IN (0, 4)),
  CONSTRAINT free_is_clean CHECK (owner IS NOT NULL
    OR (starts = 0 AND missed_count = 0 AND description IS NULL AND attempts = '[]' AND NOT triggered)),
  CONSTRAINT a_fire_under_way_was_given_out CHECK (fire_at IS NULL OR triggered OR last_fire_at >= fire_at),
  CONSTRAINT missed_whole_or_not_at_all CHECK ((missed_from IS NULL) = (missed_count = 0))
) WITH (fillfactor = 50);

-- The ledger: append-only, one row for every fire at its end, and audit rows. `at` is a fire's scheduled instant.
CREATE TABLE job_history (
  at           timestamptz      NOT NULL,
  tenant       text COLLATE "C" NOT NULL,
  job_id       text COLLATE "C" NOT NULL,
  kind         text             NOT NULL CHECK (kind IN ('fire', 'trigger', 'audit')),
  outcome      text             NOT NULL CHECK (outcome IN ('success', 'failed', 'timeout', 'crashed', 'skipped',
    'registered', 'changed', 'unregistered', 'paused', 'resumed')),
  reason       text,
  fence        bigint,
  attempt      integer,
  holder       text,
  started_at   timestamptz,
  finished_at  timestamptz      NOT NULL,
  missed_from  timestamptz,
  missed_count bigint           NOT NULL DEFAULT 0 CHECK (missed_count >= 0),
  error        text             CHECK (octet_length(error) <= 16384),
  attempts     jsonb            CHECK (jsonb_typeof(attempts) = 'array'),  -- earlier starts of a re-driven fire
  UNIQUE (tenant, job_id, at, kind),
  CONSTRAINT audit_is_not_a_fire CHECK ((kind = 'audit') = (outcome IN
    ('registered', 'changed', 'unregistered', 'paused', 'resumed'))),
  CONSTRAINT skipped_has_a_reason CHECK (outcome <> 'skipped' OR reason IS NOT NULL),
  CONSTRAINT only_a_run_has_a_fence CHECK ((fence IS NULL) = (outcome IN
    ('skipped', 'registered', 'changed', 'unregistered', 'paused', 'resumed'))),
  CONSTRAINT missed_whole_or_not_at_all CHECK ((missed_from IS NULL) = (missed_count = 0))
) PARTITION BY RANGE (at);

CREATE TABLE job_history_default PARTITION OF job_history DEFAULT;
CREATE INDEX job_history_tenant_at ON job_history (tenant, at DESC);

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
