-- A job's ready row is found by the order in which it is fed. Instances of the version before cannot submit any more.

ALTER TABLE job_queue ADD COLUMN seq bigint;
UPDATE job_queue q SET seq = o.seq FROM (
  SELECT j.tenant, j.id, row_number() OVER (ORDER BY j.created_at, r.seq) AS seq
  FROM job_queue j LEFT JOIN job_ready r ON r.tenant = j.tenant AND r.id = j.id) o
WHERE o.tenant = q.tenant AND o.id = q.id;
ALTER TABLE job_queue ALTER COLUMN seq SET NOT NULL, ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY;
SELECT setval(pg_get_serial_sequence('job_queue', 'seq'), coalesce(max(seq), 0) + 1, false) FROM job_queue;
DROP INDEX job_queue_tenant_created;
DROP INDEX job_queue_expires;
CREATE INDEX job_queue_tenant_seq ON job_queue (tenant, seq);

ALTER TABLE job_ready DROP CONSTRAINT job_ready_pkey;
DROP INDEX job_ready_order;
ALTER TABLE job_ready ALTER COLUMN seq DROP IDENTITY;
DELETE FROM job_ready r WHERE NOT EXISTS (SELECT FROM job_queue q WHERE q.tenant = r.tenant AND q.id = r.id);
UPDATE job_ready r SET priority = q.priority, run_at = q.run_at, seq = q.seq FROM job_queue q
WHERE q.tenant = r.tenant AND q.id = r.id;
ALTER TABLE job_ready ADD PRIMARY KEY (queue, priority, tenant, run_at, seq);

ALTER TABLE job_queue ADD COLUMN cancel_reason text;
CREATE INDEX job_queue_cancel ON job_queue (cancel_requested_at) WHERE cancel_requested_at IS NOT NULL;

-- Whose ledger this is: part of the names of its keys in Redis, which other ledgers may share.
CREATE TABLE installation (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid()
);
CREATE UNIQUE INDEX installation_single ON installation ((true));
INSERT INTO installation DEFAULT VALUES;

-- The queues that were ever fed, each with the mark that its Redis has. A Redis that lost its memory has not, and what
-- was fed is fed again, with the next mark.
CREATE TABLE job_epoch (
  queue text COLLATE "C" PRIMARY KEY,
  epoch bigint NOT NULL
);

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
