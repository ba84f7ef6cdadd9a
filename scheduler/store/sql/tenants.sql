-- Statements of a unit that pauses, resumes or deletes a tenant. Lock order: job_epoch by queue, then job_tenant. A
-- deletion locks job_tenant alone, then, in later transactions, rows of jobs by their keys.

-- name: paused
-- The tenants that are paused. No row: none is.
SELECT n.tenant FROM {schema}.job_tenant n WHERE n.paused_at IS NOT NULL ORDER BY n.tenant;

-- name: lock_queues
-- Wait for the feeds of all queues that are in progress, and keep others from starting until this transaction ends. Feeds
-- that wait for it take nothing. One row for each queue that was ever fed or paused.
WITH held AS MATERIALIZED (SELECT e.queue FROM {schema}.job_epoch e ORDER BY e.queue FOR NO KEY UPDATE)
UPDATE {schema}.job_epoch e SET tenant_pauses = e.tenant_pauses + 1 FROM held h WHERE e.queue = h.queue
RETURNING e.queue;

-- name: lock_queue
-- Keep the pauses of a queue and of all tenants as they are until this transaction ends. No row: it was never fed.
SELECT e.queue FROM {schema}.job_epoch e WHERE e.queue = %(queue)s FOR SHARE;

-- name: pause
-- Pause a tenant, unless it is paused. Always one row: since when it is paused.
WITH before AS MATERIALIZED (
  SELECT n.paused_at FROM {schema}.job_tenant n WHERE n.tenant = %(tenant)s FOR NO KEY UPDATE),
paused AS (  -- reads `before`, which must not run after it
  INSERT INTO {schema}.job_tenant AS n (tenant, paused_at)
  SELECT %(tenant)s, coalesce(max(b.paused_at), %(now)s::timestamptz, now()) FROM before b
  ON CONFLICT (tenant) DO UPDATE SET paused_at = coalesce(n.paused_at, excluded.paused_at) RETURNING n.paused_at),
audit AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, holder, finished_at)
  SELECT greatest(p.paused_at, last.at), %(tenant)s, '', 'audit', 'paused', %(holder)s, p.paused_at
  FROM paused p CROSS JOIN LATERAL (
    SELECT max(y.at) + interval '1 microsecond' AS at FROM {schema}.job_history y
    WHERE y.tenant = %(tenant)s AND y.job_id = '' AND y.kind = 'audit' AND y.at >= p.paused_at) last
  WHERE NOT EXISTS (SELECT FROM before b WHERE b.paused_at IS NOT NULL) ON CONFLICT DO NOTHING)
SELECT p.paused_at, pg_notify(%(channel)s, '') FROM paused p;

-- name: lookup
-- One tenant. No row: it was never paused.
SELECT n.paused_at, n.deleting_at, coalesce(%(now)s::timestamptz, now()) FROM {schema}.job_tenant n
WHERE n.tenant = %(tenant)s;

-- name: passed
-- Some recurring jobs of a tenant whose next fire has passed, by id, without those that are paused themselves. No row:
-- that was all.
SELECT j.id, j.spec::text, j.spec_hash, j.next_run_at, coalesce(%(now)s::timestamptz, now()) FROM {schema}.job j
WHERE j.tenant = %(tenant)s AND j.id > %(after)s AND j.paused_at IS NULL
  AND j.next_run_at <= coalesce(%(now)s::timestamptz, now())
ORDER BY j.tenant, j.id LIMIT %(limit)s;

-- name: skip
-- Skip fires that passed while the tenant was paused, as `resume` in job.sql does for one job. No row back for one: it has
-- changed; read it again.
WITH p AS MATERIALIZED (
  SELECT * FROM unnest((SELECT %(ids)b::text[]), (SELECT %(hashes)b::bytea[]), (SELECT %(seen)b::timestamptz[]),
                       (SELECT %(fires)b::timestamptz[]), (SELECT %(nexts)b::timestamptz[]),
                       (SELECT %(missed_from)b::timestamptz[]), (SELECT %(missed_count)b::int8[]))
    AS p(id, spec_hash, seen, fire_at, next_run_at, missed_from, missed_count)
  ORDER BY p.id COLLATE "C"),
held AS MATERIALIZED (
  SELECT p.*, coalesce(%(now)s::timestamptz, now()) AS now, coalesce(p.fire_at >= j.ledger_at, true) AS newest
  FROM p CROSS JOIN LATERAL (
    SELECT j.ledger_at FROM {schema}.job j
    WHERE j.tenant = %(tenant)s AND j.id = p.id AND j.paused_at IS NULL AND j.spec_hash = p.spec_hash
      AND j.next_run_at = p.seen
    FOR NO KEY UPDATE) j),
moved AS (
  UPDATE {schema}.job j SET next_run_at = h.next_run_at, updated_at = h.now,
    last_fire_at = greatest(j.last_fire_at, h.fire_at), ledger_at = greatest(j.ledger_at, h.fire_at),
    ledger_outcome = CASE WHEN h.newest THEN 'skipped' ELSE j.ledger_outcome END,
    ledger_finished_at = CASE WHEN h.newest THEN h.now ELSE j.ledger_finished_at END
  FROM held h WHERE j.tenant = %(tenant)s AND j.id = h.id),
skipped AS (
  INSERT INTO {schema}.job_history
    (at, tenant, job_id, kind, outcome, reason, holder, finished_at, missed_from, missed_count)
  SELECT h.fire_at, %(tenant)s, h.id, 'fire', 'skipped', 'paused', %(holder)s, h.now, h.missed_from, h.missed_count
  FROM held h ON CONFLICT DO NOTHING)
SELECT h.id FROM held h;

-- name: resume
-- Resume a tenant. One row: whether it was paused. No row: it is being deleted, or was never paused.
WITH was AS MATERIALIZED (
  SELECT n.tenant, n.paused_at, coalesce(%(now)s::timestamptz, now()) AS now FROM {schema}.job_tenant n
  WHERE n.tenant = %(tenant)s AND n.deleting_at IS NULL FOR NO KEY UPDATE),
resumed AS (
  UPDATE {schema}.job_tenant n SET paused_at = NULL FROM was w WHERE n.tenant = w.tenant),
audit AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, holder, finished_at)
  SELECT greatest(w.now, last.at), w.tenant, '', 'audit', 'resumed', %(holder)s, w.now
  FROM was w CROSS JOIN LATERAL (
    SELECT max(y.at) + interval '1 microsecond' AS at FROM {schema}.job_history y
    WHERE y.tenant = w.tenant AND y.job_id = '' AND y.kind = 'audit' AND y.at >= w.now) last
  WHERE w.paused_at IS NOT NULL ON CONFLICT DO NOTHING)
SELECT w.paused_at IS NOT NULL, pg_notify(%(channel)s, ''), pg_notify(%(queue_channel)s, '') FROM was w;

-- name: begin_deletion
-- Begin or continue to delete a tenant that is paused; waits for transactions that submit or register jobs of it.
-- The tombstone keeps instances from registering its jobs again. One row: for how long it has been paused. No row: it is
-- not paused.
WITH held AS MATERIALIZED (
  SELECT n.tenant, n.paused_at, n.deleting_at, coalesce(%(now)s::timestamptz, now()) AS now
  FROM {schema}.job_tenant n WHERE n.tenant = %(tenant)s AND n.paused_at IS NOT NULL FOR UPDATE),
begun AS (
  UPDATE {schema}.job_tenant n SET deleting_at = h.now FROM held h WHERE n.tenant = h.tenant AND h.deleting_at IS NULL),
tombstone AS (
  INSERT INTO {schema}.job_tombstone (tenant, id, deleted_at) SELECT h.tenant, '', coalesce(h.deleting_at, h.now) FROM held h
  ON CONFLICT (tenant, id) DO UPDATE SET deleted_at = excluded.deleted_at)
SELECT h.now - h.paused_at, pg_notify(%(channel)s, '') FROM held h;

-- name: lock_deletion
-- Keep the deletion of a tenant from ending until this transaction does. No row: another process has ended it, and the
-- tenant may have jobs again.
SELECT n.tenant FROM {schema}.job_tenant n WHERE n.tenant = %(tenant)s AND n.deleting_at IS NOT NULL FOR SHARE;

-- name: delete_job
-- Delete some recurring jobs, waiting for claims that hold them: none is claimed after that. The fences of jobs that are
-- registered later continue above theirs, as after `sweep` in job.sql. Always one row: how many.
WITH chosen AS MATERIALIZED (
  SELECT j.tenant, j.id, j.fence FROM {schema}.job j WHERE j.tenant = %(tenant)s
  ORDER BY j.tenant, j.id LIMIT %(limit)s FOR UPDATE),
gone AS (DELETE FROM {schema}.job j USING chosen s WHERE j.tenant = s.tenant AND j.id = s.id RETURNING 1),
fences AS (
  UPDATE {schema}.installation i SET fence = f.fence FROM (SELECT max(s.fence) AS fence FROM chosen s) f
  WHERE f.fence > i.fence)
SELECT count(*) FROM gone;

-- name: lock_jobs
-- Lock some live jobs, in the order of their keys, waiting for feeders and settlers that hold them. One row for each: id
-- and queue. No row: there is none.
SELECT q.id, q.queue FROM {schema}.job_queue q WHERE q.tenant = %(tenant)s
ORDER BY q.tenant, q.id LIMIT %(limit)s FOR UPDATE;

-- name: delete_job_queue
-- Delete live jobs that are locked, with their ready rows and edges. Always one row: how many.
WITH gone AS (
  DELETE FROM {schema}.job_queue q USING unnest((SELECT %(ids)b::uuid[])) AS p(id)
  WHERE q.tenant = %(tenant)s AND q.id = p.id
  RETURNING q.queue, q.priority, q.tenant, q.run_at, q.seq, q.id),
unfed AS (
  DELETE FROM {schema}.job_ready r USING gone g
  WHERE r.queue = g.queue AND r.priority = g.priority AND r.tenant = g.tenant AND r.run_at = g.run_at AND r.seq = g.seq),
edges AS (DELETE FROM {schema}.job_dependency d USING gone g WHERE d.tenant = g.tenant AND d.job_id = g.id)
SELECT count(*) FROM gone;

-- name: delete_job_ready
-- Delete some ready rows that have no job any more. Always one row: how many.
WITH queues AS MATERIALIZED (SELECT e.queue FROM {schema}.job_epoch e),
chosen AS MATERIALIZED (
  SELECT r.queue, r.priority, r.tenant, r.run_at, r.seq
  FROM queues q CROSS JOIN generate_series(0, 4) AS level CROSS JOIN LATERAL (
    SELECT * FROM {schema}.job_ready r
    WHERE r.queue = q.queue AND r.priority = level AND r.tenant = %(tenant)s LIMIT %(limit)s) r
  LIMIT %(limit)s),
gone AS (
  DELETE FROM {schema}.job_ready r USING chosen s
  WHERE r.queue = s.queue AND r.priority = s.priority AND r.tenant = s.tenant AND r.run_at = s.run_at AND r.seq = s.seq
  RETURNING 1)
SELECT count(*) FROM gone;

-- name: delete_job_dependency
-- Delete some edges. Always one row: how many.
WITH chosen AS MATERIALIZED (
  SELECT d.tenant, d.job_id, d.depends_on, d.kind FROM {schema}.job_dependency d WHERE d.tenant = %(tenant)s
  ORDER BY d.tenant, d.job_id, d.depends_on, d.kind LIMIT %(limit)s FOR UPDATE),
gone AS (
  DELETE FROM {schema}.job_dependency d USING chosen s
  WHERE d.tenant = s.tenant AND d.job_id = s.job_id AND d.depends_on = s.depends_on AND d.kind = s.kind RETURNING 1)
SELECT count(*) FROM gone;

-- name: delete_job_lock
-- Delete some lock rows, also those of runs in progress, whose results are dropped. The fences of jobs that are registered
-- later continue above theirs. Always one row: how many.
WITH chosen AS MATERIALIZED (
  SELECT l.tenant, l.id, l.fence FROM {schema}.job_lock l WHERE l.tenant = %(tenant)s
  ORDER BY l.tenant, l.id LIMIT %(limit)s FOR UPDATE),
gone AS (DELETE FROM {schema}.job_lock l USING chosen s WHERE l.tenant = s.tenant AND l.id = s.id RETURNING 1),
fences AS (
  UPDATE {schema}.installation i SET fence = f.fence FROM (SELECT max(s.fence) AS fence FROM chosen s) f
  WHERE f.fence > i.fence)
SELECT count(*) FROM gone;

-- name: delete_job_history
-- Delete some rows of the ledger; the audit rows of the tenant itself stay. Always one row: how many.
WITH chosen AS MATERIALIZED (
  SELECT h.tenant, h.job_id, h.at, h.kind FROM {schema}.job_history h WHERE h.tenant = %(tenant)s AND h.job_id <> ''
  LIMIT %(limit)s),
gone AS (
  DELETE FROM {schema}.job_history h USING chosen s
  WHERE h.tenant = s.tenant AND h.job_id = s.job_id AND h.at = s.at AND h.kind = s.kind RETURNING 1)
SELECT count(*) FROM gone;

-- name: lock_letters
-- Lock some dead letters. One row for each: id and queue. No row: there is none.
SELECT l.id, l.queue FROM {schema}.job_letter l WHERE l.tenant = %(tenant)s
ORDER BY l.tenant, l.id LIMIT %(limit)s FOR UPDATE;

-- name: delete_job_letter
-- Delete dead letters that are locked. Always one row: how many.
WITH gone AS (
  DELETE FROM {schema}.job_letter l USING unnest((SELECT %(ids)b::uuid[])) AS p(id)
  WHERE l.tenant = %(tenant)s AND l.id = p.id RETURNING 1)
SELECT count(*) FROM gone;

-- name: delete_job_callback
-- Delete some callbacks that were not sent. Always one row: how many.
WITH chosen AS MATERIALIZED (
  SELECT c.tenant, c.job_id FROM {schema}.job_callback c WHERE c.tenant = %(tenant)s
  ORDER BY c.tenant, c.job_id LIMIT %(limit)s FOR UPDATE),
gone AS (DELETE FROM {schema}.job_callback c USING chosen s WHERE c.tenant = s.tenant AND c.job_id = s.job_id RETURNING 1)
SELECT count(*) FROM gone;

-- name: delete_job_key
-- Delete some idempotency keys. Always one row: how many.
WITH chosen AS MATERIALIZED (
  SELECT k.tenant, k.type, k.key FROM {schema}.job_key k WHERE k.tenant = %(tenant)s
  ORDER BY k.tenant, k.type, k.key LIMIT %(limit)s FOR UPDATE),
gone AS (
  DELETE FROM {schema}.job_key k USING chosen s WHERE k.tenant = s.tenant AND k.type = s.type AND k.key = s.key RETURNING 1)
SELECT count(*) FROM gone;

-- name: delete_job_alias
-- Delete some aliases. Always one row: how many.
WITH chosen AS MATERIALIZED (
  SELECT a.tenant, a.id FROM {schema}.job_alias a WHERE a.tenant = %(tenant)s
  ORDER BY a.tenant, a.id LIMIT %(limit)s FOR UPDATE),
gone AS (DELETE FROM {schema}.job_alias a USING chosen s WHERE a.tenant = s.tenant AND a.id = s.id RETURNING 1)
SELECT count(*) FROM gone;

-- name: delete_job_tombstone
-- Delete some tombstones of single jobs: that of the tenant stands for them. Always one row: how many.
WITH chosen AS MATERIALIZED (
  SELECT t.tenant, t.id FROM {schema}.job_tombstone t WHERE t.tenant = %(tenant)s AND t.id <> ''
  ORDER BY t.tenant, t.id LIMIT %(limit)s FOR UPDATE),
gone AS (DELETE FROM {schema}.job_tombstone t USING chosen s WHERE t.tenant = s.tenant AND t.id = s.id RETURNING 1)
SELECT count(*) FROM gone;

-- name: end_deletion
-- Delete the row of the tenant itself, and write the audit row. One row. No row: another process did.
WITH gone AS (
  DELETE FROM {schema}.job_tenant n WHERE n.tenant = %(tenant)s AND n.deleting_at IS NOT NULL RETURNING n.tenant),
audit AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, holder, finished_at)
  SELECT greatest(t.now, last.at), g.tenant, '', 'audit', 'deleted', %(holder)s, t.now
  FROM (SELECT coalesce(%(now)s::timestamptz, now()) AS now) t CROSS JOIN gone g CROSS JOIN LATERAL (
    SELECT max(y.at) + interval '1 microsecond' AS at FROM {schema}.job_history y
    WHERE y.tenant = g.tenant AND y.job_id = '' AND y.kind = 'audit' AND y.at >= t.now) last
  ON CONFLICT DO NOTHING)
SELECT g.tenant, pg_notify(%(channel)s, '') FROM gone g;
