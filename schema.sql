-- The whole schema, version 12. `initialise()` and `scheduler migrate` apply it in a Postgres schema of its own
-- (they set the search_path).
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
  queued_id   uuid,                       -- the one-shot job that its newest fire became, with queue=
  last_fire_at timestamptz,               -- its newest fire and fence: a claim uses the greater of these values and
  fence       bigint           NOT NULL DEFAULT 0 CHECK (fence >= 0),  -- those of job_lock, whose row can be deleted
  app         text COLLATE "C" CHECK (length(app) BETWEEN 1 AND 200),  -- of the instance that registered the definition;
  version     bigint           CHECK (version >= 0),  -- NULL: it has none, which is below every version of the app
  ledger_at          timestamptz,         -- the newest ledger row of a fire that was skipped or queued, for the mirror;
  ledger_outcome     text,                -- that of the newest run is in job_lock
  ledger_finished_at timestamptz,
  PRIMARY KEY (tenant, id)
) WITH (fillfactor = 50);

-- Tombstones. With an id: the job was unregistered, by an instance of this app and version; registering the job deletes
-- the tombstone. With the id '': the tenant was deleted, with all its jobs. Registering a job of the tenant keeps that
-- tombstone: an instance compares `deleted_at` with the value that it read when it registered the job, and the job was
-- deleted if they differ. Instances register a job again whose row disappeared without a tombstone. Tombstones older than
-- `retention` are deleted. One-time jobs that are removed after `retention` have none, and are not registered again.
CREATE TABLE job_tombstone (
  tenant     text COLLATE "C" NOT NULL CHECK (length(tenant) BETWEEN 1 AND 200),
  id         text COLLATE "C" NOT NULL CHECK (length(id) <= 200),
  app        text COLLATE "C",
  version    bigint,
  deleted_at timestamptz      NOT NULL,
  PRIMARY KEY (tenant, id),
  CONSTRAINT a_tenant_has_no_version CHECK (id <> '' OR num_nonnulls(app, version) = 0)
);

-- Tenants that are paused, that are being deleted, or that were paused once. While `deleting_at` is set, submitting and
-- registering jobs of the tenant is refused. A submit locks the row of a paused tenant FOR KEY SHARE, which only the start
-- of a deletion waits for. Deleting a tenant deletes its row here last.
CREATE TABLE job_tenant (
  tenant      text COLLATE "C" PRIMARY KEY CHECK (length(tenant) BETWEEN 1 AND 200),
  paused_at   timestamptz,
  deleting_at timestamptz,
  CONSTRAINT only_a_paused_tenant_is_deleted CHECK (deleting_at IS NULL OR paused_at IS NOT NULL)
);

-- Statements that write jobs call it for a tenant that is being deleted: it raises, so that nothing is written.
CREATE FUNCTION refuse_tenant(tenant text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'TN001', MESSAGE = format('tenant %L is being deleted', tenant);
END $$;

-- The lease on the running fire of a job, one row for each job. It stays when the row of job is deleted, so that the
-- fence only grows and a fire at or before last_fire_at never runs again. Once its job is gone and nothing has happened
-- to it for `retention`, it is removed. `installation` then remembers its fence, and that older fires are forgotten. A
-- claim writes it by INSERT .. ON CONFLICT DO UPDATE, and inserts a row that was deleted.
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
  last_trigger_at timestamptz,            -- each trigger has an instant of its own
  begun        boolean,                   -- of a job that runs at most once: whether the function is about to be called
                                          -- or was called; NULL of any other job
  ledger_at          timestamptz,         -- the newest ledger row of a run, for the mirror: to read it from the ledger,
  ledger_outcome     text,                -- a sync would have to probe each partition for each job
  ledger_finished_at timestamptz,
  ran_once     boolean          NOT NULL DEFAULT false,  -- its job was to fire once, when it was registered, and was
                                          -- removed after that. The row is kept for ever: the job must not fire again
  PRIMARY KEY (tenant, id),
  CONSTRAINT held_whole_or_not_at_all CHECK (
    num_nonnulls(owner, fire_at, created_at, expires_at) IN (0, 4)),
  CONSTRAINT free_is_clean CHECK (owner IS NOT NULL
    OR (starts = 0 AND missed_count = 0 AND description IS NULL AND attempts = '[]')),
  CONSTRAINT a_fire_under_way_was_given_out CHECK (fire_at IS NULL OR triggered
    OR coalesce(last_fire_at >= fire_at, false)),
  CONSTRAINT missed_whole_or_not_at_all CHECK ((missed_from IS NULL) = (missed_count = 0))
) WITH (fillfactor = 50);

-- The ledger: append-only, one row for every fire at its end, and audit rows. `at` is a fire's scheduled instant. The
-- audit rows of a tenant itself have an empty job_id.
CREATE TABLE job_history (
  at           timestamptz      NOT NULL,
  tenant       text COLLATE "C" NOT NULL,
  job_id       text COLLATE "C" NOT NULL,
  kind         text             NOT NULL,
  outcome      text             NOT NULL,
  reason       text,
  fence        bigint,                    -- of a job: the sequence number of its last lease
  attempt      integer,
  holder       text,
  started_at   timestamptz,
  finished_at  timestamptz      NOT NULL,
  missed_from  timestamptz,
  missed_count bigint           NOT NULL DEFAULT 0 CHECK (missed_count >= 0),
  error        text             CHECK (octet_length(error) <= 16384),
  attempts     jsonb            CHECK (jsonb_typeof(attempts) = 'array'),  -- earlier; of a job also the last, unless
                                                                           -- this row says all that there is to it
  type         text,                      -- of a one-shot job: as it was submitted, down to `job`, what is rarer of it
  queue        text COLLATE "C",
  priority     smallint,
  run_at       timestamptz,
  created_at   timestamptz,
  scheduled_at timestamptz,               -- when it was pushed into Redis; NULL: at run_at
  json         boolean,
  job          jsonb            CHECK (jsonb_typeof(job) = 'object'),      -- or which job a queued fire became
  payload      bytea,
  result       bytea            CHECK (octet_length(result) <= 1048576),
  UNIQUE (tenant, job_id, at, kind),
  CONSTRAINT outcome_fits_kind CHECK (CASE kind
    WHEN 'fire' THEN outcome IN ('success', 'failed', 'timeout', 'crashed', 'skipped', 'queued')
    WHEN 'trigger' THEN outcome IN ('success', 'failed', 'timeout', 'crashed', 'queued')
    WHEN 'job' THEN outcome IN ('completed', 'failed', 'dead_letter', 'cancelled')
    WHEN 'audit' THEN outcome IN ('registered', 'changed', 'unregistered', 'paused', 'resumed', 'deleted')
    ELSE false END),
  CONSTRAINT skipped_has_a_reason CHECK (outcome <> 'skipped' OR reason IS NOT NULL),
  CONSTRAINT only_a_run_has_a_fence CHECK (kind = 'job'
    OR (fence IS NULL) = (kind = 'audit' OR outcome IN ('skipped', 'queued'))),
  CONSTRAINT a_job_is_described CHECK ((kind = 'job') = (type IS NOT NULL AND queue IS NOT NULL
    AND priority IS NOT NULL AND run_at IS NOT NULL AND created_at IS NOT NULL AND json IS NOT NULL)),
  CONSTRAINT only_jobs_are_described CHECK (kind = 'job' OR (job IS NOT NULL) = (outcome = 'queued')),
  CONSTRAINT missed_whole_or_not_at_all CHECK ((missed_from IS NULL) = (missed_count = 0))
) PARTITION BY RANGE (at);

CREATE TABLE job_history_default PARTITION OF job_history DEFAULT;
CREATE INDEX job_history_tenant_at ON job_history (tenant, at DESC);
CREATE INDEX job_history_audit ON job_history (tenant, job_id, at DESC) WHERE kind = 'audit';
-- The few rows that end long after their instant, for which a partition outlives its day by more than `retention`.
CREATE INDEX job_history_late ON job_history (finished_at) WHERE finished_at - at > interval '1 day';

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
  mirrors    text[],                      -- the tenants whose jobs it mirrors; NULL: all
  app        text COLLATE "C",            -- as it was initialised: it orders definitions (job.app, job.version)
  version    bigint,
  CONSTRAINT each_job_has_a_tenant CHECK (cardinality(tenants) = cardinality(ids))
) WITH (fillfactor = 50);

-- Live one-shot jobs, until they end: then the row moves into the ledger. What waits to be fed is in job_ready too.
-- State is derived: open_dependencies > 0, pending; in job_ready, pending, or delayed by run_at; retrying as it says;
-- any other, scheduled (Redis knows which of them run).
CREATE TABLE job_queue (
  tenant              text COLLATE "C" NOT NULL CHECK (length(tenant) BETWEEN 1 AND 200),
  id                  uuid             NOT NULL,
  seq                 bigint           GENERATED ALWAYS AS IDENTITY,              -- the order of submission
  type                text             NOT NULL CHECK (length(type) BETWEEN 1 AND 200),
  queue               text COLLATE "C" NOT NULL CHECK (length(queue) BETWEEN 1 AND 100),
  priority            smallint         NOT NULL CHECK (priority BETWEEN 0 AND 4),
  run_at              timestamptz      NOT NULL,
  created_at          timestamptz      NOT NULL,
  updated_at          timestamptz      NOT NULL,   -- the last change of its state that Postgres knows of
  fed_again_at        timestamptz,                 -- when it was last made ready because Redis did not know it
  expires_at          timestamptz      NOT NULL,   -- the end of its lifetime, which counts from run_at
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
  cancel_reason       text,
  trace               text,                        -- the context of the span in which it was submitted
  idempotency_key     text,                        -- a copy of job_key's, for its handler
  previous_attempt_id uuid,                        -- the last attempt of the job that it retries
  PRIMARY KEY (tenant, id),
  CONSTRAINT retrying_was_tried CHECK (NOT retrying OR attempt >= 1),
  CONSTRAINT what_waits_for_others_never_ran CHECK (open_dependencies = 0 OR (attempt = 0 AND NOT retrying)),
  CONSTRAINT forced_is_requested CHECK (NOT cancel_forced OR cancel_requested_at IS NOT NULL),
  CONSTRAINT lives_before_it_ends CHECK (expires_at > created_at)
) WITH (fillfactor = 90);
CREATE INDEX job_queue_tenant_seq ON job_queue (tenant, seq);
CREATE INDEX job_queue_pending ON job_queue (queue, seq) WHERE open_dependencies > 0;
CREATE INDEX job_queue_cancel ON job_queue (cancel_requested_at) WHERE cancel_requested_at IS NOT NULL;

-- The jobs that wait to be fed, and nothing else of them: a feed is a DELETE here. No foreign key: an id without a
-- job_queue row is dropped. A row is never updated, and is found by values of its job_queue row. So whoever changes
-- priority or run_at there locks that row first, in a statement of its own, and then, in a later one, deletes the row
-- here by the old values, waiting for a feeder that holds it.
CREATE TABLE job_ready (
  queue    text COLLATE "C" NOT NULL,
  priority smallint         NOT NULL,
  tenant   text COLLATE "C" NOT NULL,
  run_at   timestamptz      NOT NULL,
  seq      bigint           NOT NULL,
  id       uuid             NOT NULL,
  PRIMARY KEY (queue, priority, tenant, run_at, seq)
);

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

-- Whose ledger this is: part of the names of its keys in Redis, which other ledgers may share. And what is remembered
-- of lock rows that were removed.
CREATE TABLE installation (
  id               uuid   PRIMARY KEY DEFAULT gen_random_uuid(),
  forgotten_before timestamptz,                        -- it may be forgotten whether an earlier fire has run
  fence            bigint NOT NULL DEFAULT 0           -- the greatest fence of the rows that were removed
);
CREATE UNIQUE INDEX installation_single ON installation ((true));
INSERT INTO installation DEFAULT VALUES;

-- The queues that were ever fed, each with the mark that its Redis has. A Redis that lost its memory has not, and what
-- was fed is fed again, with the next mark. One that is paused is not fed. `tenant_pauses` grows when a tenant is paused:
-- a feed that waited for the row meanwhile sees that it must read the paused tenants again.
CREATE TABLE job_epoch (
  queue         text COLLATE "C" PRIMARY KEY,
  epoch         bigint NOT NULL,
  paused_at     timestamptz,
  tenant_pauses bigint NOT NULL DEFAULT 0
);

-- Dead letters: jobs that failed or died, written with their end, until they are retried or purged. What they were is in
-- the ledger, at the same instant.
CREATE TABLE job_letter (
  tenant text COLLATE "C" NOT NULL,
  id     uuid             NOT NULL,
  queue  text COLLATE "C" NOT NULL,
  at     timestamptz      NOT NULL,
  PRIMARY KEY (tenant, id)
);
CREATE INDEX job_letter_queue_at ON job_letter (queue, at, tenant, id);

-- Ends of jobs that a callback_url is to be told of, written with the end itself; gone once it was told. What is told is
-- in the ledger, at created_at. Whoever claims one moves due_at on by a lease and then posts: no transaction waits for a
-- receiver.
CREATE TABLE job_callback (
  tenant     text COLLATE "C" NOT NULL,
  job_id     uuid             NOT NULL,
  url        text             NOT NULL,
  state      text             NOT NULL CHECK (state IN ('completed', 'failed', 'dead_letter', 'cancelled')),
  attempt    integer          NOT NULL DEFAULT 0 CHECK (attempt >= 0),   -- grows with each claim
  due_at     timestamptz      NOT NULL,
  created_at timestamptz      NOT NULL,
  gave_up_at timestamptz,                 -- it will not be told; the row is kept for a day
  error      text             CHECK (octet_length(error) <= 16384),      -- of its newest attempt
  PRIMARY KEY (tenant, job_id),
  CONSTRAINT giving_up_has_a_reason CHECK (gave_up_at IS NULL OR error IS NOT NULL)
) WITH (fillfactor = 90);
CREATE INDEX job_callback_due ON job_callback (due_at) WHERE gave_up_at IS NULL;
CREATE INDEX job_callback_gave_up ON job_callback (gave_up_at) WHERE gave_up_at IS NOT NULL;

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

-- Aliases of jobs: the ids that handlers gave to jobs whose idempotency key was taken.
CREATE TABLE job_alias (
  tenant     text COLLATE "C" NOT NULL,
  id         uuid             NOT NULL,
  job_id     uuid             NOT NULL,
  created_at timestamptz      NOT NULL,
  PRIMARY KEY (tenant, id)
);
CREATE INDEX job_alias_created ON job_alias (created_at);

-- The ledger's partitions: a day each, made ahead, dropped when all their rows ended longer than `keep` ago (NULL:
-- never). A row ends within a day of its instant, or is in the index job_history_late. Rows without a partition are in
-- the default one. One instance at a time; concurrent calls return without effect.
CREATE FUNCTION tend_history(moment timestamptz, ahead integer, keep interval, OUT made integer, OUT dropped integer)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  home  text := current_schema();
  today date := (moment AT TIME ZONE 'UTC')::date;
  first timestamptz;
  name  text;
  late  boolean;
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
      AND (to_date(right(c.relname, 8), 'YYYYMMDD') + 2)::timestamp AT TIME ZONE 'UTC' <= moment - keep
  LOOP
    EXECUTE format('SELECT EXISTS (SELECT FROM %I.%I'
      ' WHERE finished_at >= $1 AND finished_at - at > interval ''1 day'')', home, name) INTO late USING moment - keep;
    CONTINUE WHEN late;
    EXECUTE format('DROP TABLE %I.%I', home, name);
    dropped := dropped + 1;
  END LOOP;
  DELETE FROM job_history_default d WHERE d.at < moment - keep AND d.finished_at < moment - keep;
  DELETE FROM job_key k WHERE k.expires_at < moment;
  DELETE FROM job_letter l WHERE l.at < moment - keep AND NOT EXISTS (
    SELECT FROM job_history h WHERE h.tenant = l.tenant AND h.job_id = l.id::text AND h.at = l.at AND h.kind = 'job');
  DELETE FROM job_alias a WHERE a.created_at < moment - keep;
  DELETE FROM job_tombstone t WHERE t.deleted_at < moment - keep;
END $$;
