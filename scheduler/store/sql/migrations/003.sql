-- One-shot jobs. Instances of the version before go on with it.

ALTER TABLE job ADD COLUMN queued_id uuid;
ALTER TABLE job_lock ADD COLUMN last_trigger_at timestamptz;

ALTER TABLE job_history DROP CONSTRAINT IF EXISTS job_history_kind_check;
ALTER TABLE job_history DROP CONSTRAINT IF EXISTS job_history_outcome_check;
ALTER TABLE job_history DROP CONSTRAINT IF EXISTS audit_is_not_a_fire;
ALTER TABLE job_history DROP CONSTRAINT IF EXISTS only_a_run_has_a_fence;
ALTER TABLE job_history ADD COLUMN job jsonb CHECK (jsonb_typeof(job) = 'object');
ALTER TABLE job_history ADD COLUMN payload bytea;
ALTER TABLE job_history ADD COLUMN result bytea CHECK (octet_length(result) <= 1048576);
ALTER TABLE job_history ADD CONSTRAINT outcome_fits_kind CHECK (CASE kind
  WHEN 'fire' THEN outcome IN ('success', 'failed', 'timeout', 'crashed', 'skipped', 'queued')
  WHEN 'trigger' THEN outcome IN ('success', 'failed', 'timeout', 'crashed', 'queued')
  WHEN 'job' THEN outcome IN ('completed', 'failed', 'dead_letter', 'cancelled')
  WHEN 'audit' THEN outcome IN ('registered', 'changed', 'unregistered', 'paused', 'resumed')
  ELSE false END);
ALTER TABLE job_history ADD CONSTRAINT only_a_run_has_a_fence CHECK ((fence IS NULL) = (kind IN ('audit', 'job')
  OR outcome IN ('skipped', 'queued')));
ALTER TABLE job_history ADD CONSTRAINT a_job_is_described CHECK ((job IS NOT NULL) = (kind = 'job' OR outcome = 'queued'));

-- Live one-shot jobs, until they end: then the row moves into the ledger. What waits to be fed is in job_ready too.
-- State is derived: open_dependencies > 0, pending; in job_ready, pending, or delayed by run_at; retrying as it says;
-- any other, scheduled (Redis knows which of them run).
CREATE TABLE job_queue (
  tenant              text COLLATE "C" NOT NULL CHECK (length(tenant) BETWEEN 1 AND 200),
  id                  uuid             NOT NULL,
  type                text             NOT NULL CHECK (length(type) BETWEEN 1 AND 200),
  queue               text COLLATE "C" NOT NULL CHECK (length(queue) BETWEEN 1 AND 100),
  priority            smallint         NOT NULL CHECK (priority BETWEEN 0 AND 4),
  run_at              timestamptz      NOT NULL,
  created_at          timestamptz      NOT NULL,
  updated_at          timestamptz      NOT NULL,
  expires_at          timestamptz      NOT NULL,   -- the end of its lifetime
  feed                integer          NOT NULL DEFAULT 1 CHECK (feed >= 1),      -- grows when it is fed anew
  attempt             integer          NOT NULL DEFAULT 0 CHECK (attempt >= 0),   -- the newest one that is settled
  retrying            boolean          NOT NULL DEFAULT false,
  open_dependencies   integer          NOT NULL DEFAULT 0 CHECK (open_dependencies BETWEEN 0 AND 1001),
  depth               smallint         NOT NULL DEFAULT 0 CHECK (depth BETWEEN 0 AND 100),
  json                boolean          NOT NULL,   -- the payload is JSON, not bytes
  payload             bytea            NOT NULL CHECK (octet_length(payload) <= 16777216),
  policy              jsonb            CHECK (jsonb_typeof(policy) = 'object'),   -- what differs from the defaults
  tags                jsonb            CHECK (jsonb_typeof(tags) = 'object'),
  correlation_id      text,
  callback_url        text,
  retried_from        uuid,
  attempts            jsonb            NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(attempts) = 'array'),
  cancel_requested_at timestamptz,
  cancel_forced       boolean          NOT NULL DEFAULT false,
  PRIMARY KEY (tenant, id),
  CONSTRAINT retrying_was_tried CHECK (NOT retrying OR attempt >= 1),
  CONSTRAINT what_waits_for_others_never_ran CHECK (open_dependencies = 0 OR (attempt = 0 AND NOT retrying)),
  CONSTRAINT forced_is_requested CHECK (NOT cancel_forced OR cancel_requested_at IS NOT NULL),
  CONSTRAINT lives_before_it_ends CHECK (expires_at > created_at)
) WITH (fillfactor = 90);
CREATE INDEX job_queue_tenant_created ON job_queue (tenant, created_at, id);
CREATE INDEX job_queue_expires ON job_queue USING brin (expires_at) WITH (pages_per_range = 32, autosummarize = on);

-- The jobs that wait to be fed, and nothing else of them: a feed is a DELETE here. No foreign key: an id without a
-- job_queue row is dropped.
CREATE TABLE job_ready (
  queue    text COLLATE "C" NOT NULL,
  priority smallint         NOT NULL,
  run_at   timestamptz      NOT NULL,
  seq      bigint           GENERATED ALWAYS AS IDENTITY,
  tenant   text COLLATE "C" NOT NULL,
  id       uuid             NOT NULL,
  PRIMARY KEY (tenant, id)
);
CREATE INDEX job_ready_order ON job_ready (queue, priority, run_at, seq);

-- Edges between live jobs: `after` needs the success of each, `after_any` the end of one.
CREATE TABLE job_dependency (
  tenant     text COLLATE "C" NOT NULL,
  job_id     uuid             NOT NULL,
  depends_on uuid             NOT NULL,
  kind       text             NOT NULL CHECK (kind IN ('after', 'after_any')),
  PRIMARY KEY (tenant, job_id, depends_on, kind),
  CONSTRAINT nobody_waits_for_itself CHECK (job_id <> depends_on)
);
CREATE INDEX job_dependency_depends_on ON job_dependency (tenant, depends_on);

-- Idempotency keys, each for its window, whatever becomes of the job.
CREATE TABLE job_key (
  tenant     text COLLATE "C" NOT NULL,
  type       text COLLATE "C" NOT NULL,
  key        text COLLATE "C" NOT NULL CHECK (length(key) BETWEEN 1 AND 256),
  job_id     uuid             NOT NULL,
  expires_at timestamptz      NOT NULL,
  PRIMARY KEY (tenant, type, key)
);
CREATE INDEX job_key_expires ON job_key (expires_at);

-- The ledger's partitions: a day each, made ahead, dropped when they are older than `keep` (NULL: never). What has no
-- partition is in the default one. One instance at a time; whoever comes meanwhile has nothing to do.
CREATE FUNCTION tend_history(moment timestamptz, ahead integer, keep interval, OUT made integer, OUT dropped integer)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  home  text := current_schema();
  today date := (moment AT TIME ZONE 'UTC')::date;
  first timestamptz;
  name  text;
BEGIN
  made := 0;
  dropped := 0;
  IF NOT pg_try_advisory_xact_lock(hashtextextended('scheduler:history:' || home, 7307)) THEN
    RETURN;
  END IF;
  FOR day IN 0 .. ahead LOOP
    name := 'job_history_' || to_char(today + day, 'YYYYMMDD');
    first := (today + day)::timestamp AT TIME ZONE 'UTC';
    CONTINUE WHEN to_regclass(format('%I.%I', home, name)) IS NOT NULL
      OR EXISTS (SELECT FROM job_history_default d WHERE d.at >= first AND d.at < first + interval '1 day');
    EXECUTE format('CREATE TABLE %I.%I (LIKE %I.job_history INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', home, name, home);
    EXECUTE format('ALTER TABLE %I.job_history ATTACH PARTITION %I.%I FOR VALUES FROM (%L) TO (%L)',
      home, home, name, first, first + interval '1 day');
    made := made + 1;
  END LOOP;
  FOR name IN
    SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'job_history'::regclass AND c.relname ~ '^job_history_\d{8}$'
      AND to_date(right(c.relname, 8), 'YYYYMMDD') < ((moment - keep) AT TIME ZONE 'UTC')::date
  LOOP
    EXECUTE format('DROP TABLE %I.%I', home, name);
    dropped := dropped + 1;
  END LOOP;
  DELETE FROM job_history_default d WHERE d.at < moment - keep;
  DELETE FROM job_key k WHERE k.expires_at < moment;
END $$;
