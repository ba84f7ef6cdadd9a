-- name: instant
-- The database's clock. Always one row.
SELECT coalesce(%(now)s::timestamptz, clock_timestamp());

-- name: mirror
-- Jobs, leases and the newest ledger row of the named tenants (NULL: of all). No row: the job is gone.
SELECT j.tenant, j.id, j.spec_hash, j.next_run_at, j.paused_at,
       l.fire_at, l.description, h.at, h.outcome, h.finished_at,
       j.spec::text
FROM {schema}.job j
JOIN {schema}.job_lock l ON l.tenant = j.tenant AND l.id = j.id
LEFT JOIN LATERAL (
  SELECT h.at, h.outcome, h.finished_at FROM {schema}.job_history h
  WHERE h.tenant = j.tenant AND h.job_id = j.id AND h.kind = 'fire' ORDER BY h.at DESC LIMIT 1) h ON true
WHERE %(tenants)b::text[] IS NULL OR j.tenant = ANY(%(tenants)b::text[]);

-- name: lookup
-- Named jobs and what their lock rows remember. A NULL spec_hash: not registered.
SELECT j.spec_hash, j.next_run_at, j.paused_at, j.created_at, l.last_fire_at, j.spec::text
FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[])) WITH ORDINALITY AS p(tenant, id, ord)
LEFT JOIN LATERAL (SELECT * FROM {schema}.job j WHERE j.tenant = p.tenant AND j.id = p.id) j ON true
LEFT JOIN LATERAL (SELECT * FROM {schema}.job_lock l WHERE l.tenant = p.tenant AND l.id = p.id) l ON true
ORDER BY p.ord;

-- name: insert
-- New jobs with their lock rows. No row back: another instance registered that job first; look again.
WITH p AS MATERIALIZED (
  SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(specs)b::text[]),
                       (SELECT %(hashes)b::bytea[]), (SELECT %(deliveries)b::text[]), (SELECT %(overlaps)b::text[]),
                       (SELECT %(nexts)b::timestamptz[]))
    AS p(tenant, id, spec, spec_hash, delivery, overlap, next_run_at)
  ORDER BY p.tenant COLLATE "C", p.id COLLATE "C"),
locks AS (
  INSERT INTO {schema}.job_lock (tenant, id) SELECT tenant, id FROM p ON CONFLICT DO NOTHING),
new AS (
  INSERT INTO {schema}.job (tenant, id, spec, spec_hash, delivery, overlap, next_run_at, created_at, updated_at)
  SELECT tenant, id, spec::jsonb, spec_hash, delivery, overlap, next_run_at, t.now, t.now
  FROM p, (SELECT coalesce(%(now)s::timestamptz, now()) AS now) t
  ON CONFLICT DO NOTHING RETURNING tenant, id, created_at),
audit AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, holder, finished_at)
  SELECT created_at, tenant, id, 'audit', 'registered', %(holder)s, created_at FROM new ON CONFLICT DO NOTHING)
SELECT tenant, id FROM new;

-- name: change
-- New definitions of known jobs, compare-and-set. No row back: somebody was faster; look again.
WITH p AS MATERIALIZED (
  SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(specs)b::text[]),
                       (SELECT %(hashes)b::bytea[]), (SELECT %(deliveries)b::text[]), (SELECT %(overlaps)b::text[]),
                       (SELECT %(nexts)b::timestamptz[]), (SELECT %(old_hashes)b::bytea[]),
                       (SELECT %(old_nexts)b::timestamptz[]))
    AS p(tenant, id, spec, spec_hash, delivery, overlap, next_run_at, old_hash, old_next)
  ORDER BY p.tenant COLLATE "C", p.id COLLATE "C"),
held AS MATERIALIZED (
  SELECT p.*, coalesce(%(now)s::timestamptz, now()) AS now FROM p CROSS JOIN LATERAL (
    SELECT FROM {schema}.job j WHERE j.tenant = p.tenant AND j.id = p.id
      AND j.spec_hash = p.old_hash AND j.next_run_at IS NOT DISTINCT FROM p.old_next
    FOR NO KEY UPDATE) j),
changed AS (
  UPDATE {schema}.job j SET spec = h.spec::jsonb, spec_hash = h.spec_hash, delivery = h.delivery, overlap = h.overlap,
    next_run_at = h.next_run_at, updated_at = h.now
  FROM held h WHERE j.tenant = h.tenant AND j.id = h.id),
audit AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, reason, holder, finished_at)
  SELECT now, tenant, id, 'audit', 'changed', 'next run ' || coalesce(to_char(next_run_at AT TIME ZONE 'UTC',
    'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'none'), %(holder)s, now FROM held
  ON CONFLICT DO NOTHING)
SELECT tenant, id FROM held;

-- name: remove
-- Unregister: the lock row stays. No row back: there was no such job.
WITH gone AS (
  DELETE FROM {schema}.job WHERE tenant = %(tenant)s AND id = %(id)s RETURNING tenant, id),
audit AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, holder, finished_at)
  SELECT t.now, tenant, id, 'audit', 'unregistered', %(holder)s, t.now
  FROM gone, (SELECT coalesce(%(now)s::timestamptz, now()) AS now) t ON CONFLICT DO NOTHING)
SELECT tenant FROM gone;

-- name: notify
-- Tell the other instances to look now instead of at their next sync.
SELECT pg_notify(%(channel)s, '');
