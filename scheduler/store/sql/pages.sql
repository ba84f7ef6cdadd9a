-- What the pages of the dashboard show beside what the API has. Every statement reads a bounded number of rows, by an
-- index; where it stops at its bound, the page says so.

-- name: tenants
-- Tenants that have registered jobs, live jobs or dead letters, by name, one probe of an index each. No row: none.
WITH RECURSIVE registered AS (
  (SELECT j.tenant, 1 AS turn FROM {schema}.job j ORDER BY j.tenant LIMIT 1)
  UNION ALL
  SELECT n.tenant, r.turn + 1 FROM registered r CROSS JOIN LATERAL (
    SELECT j.tenant FROM {schema}.job j WHERE j.tenant > r.tenant ORDER BY j.tenant LIMIT 1) n
  WHERE r.turn < %(limit)s::int4),
submitted AS (
  (SELECT q.tenant, 1 AS turn FROM {schema}.job_queue q ORDER BY q.tenant LIMIT 1)
  UNION ALL
  SELECT n.tenant, s.turn + 1 FROM submitted s CROSS JOIN LATERAL (
    SELECT q.tenant FROM {schema}.job_queue q WHERE q.tenant > s.tenant ORDER BY q.tenant LIMIT 1) n
  WHERE s.turn < %(limit)s::int4),
dead AS (
  (SELECT l.tenant, 1 AS turn FROM {schema}.job_letter l ORDER BY l.tenant LIMIT 1)
  UNION ALL
  SELECT n.tenant, d.turn + 1 FROM dead d CROSS JOIN LATERAL (
    SELECT l.tenant FROM {schema}.job_letter l WHERE l.tenant > d.tenant ORDER BY l.tenant LIMIT 1) n
  WHERE d.turn < %(limit)s::int4)
SELECT tenant FROM registered UNION SELECT tenant FROM submitted UNION SELECT tenant FROM dead
ORDER BY tenant LIMIT %(limit)s::int4;

-- name: minutes
-- How a tenant's fires and jobs ended, minute by minute, the newest `most` of each minute: by kind, queue and outcome;
-- and in a row without a kind how many rows that were, since when, and how late they started (median and 95th, in
-- seconds). No row for a minute: nothing ended. Always a row without a minute: the time.
WITH t AS (SELECT coalesce(%(now)s::timestamptz, now()) AS now),
m AS (
  SELECT generate_series(date_trunc('minute', t.now) - interval '1 minute' * (%(minutes)s::int4 - 1),
    date_trunc('minute', t.now), interval '1 minute') AS at FROM t)
SELECT NULL::timestamptz AS minute, NULL::text AS kind, NULL::text AS queue, NULL::text AS outcome, 0::int8 AS count,
  t.now AS since, NULL::float8 AS usual, NULL::float8 AS late FROM t
UNION ALL
SELECT m.at, s.kind, s.queue, s.outcome, count(*), min(s.at),
  percentile_cont(0.5) WITHIN GROUP (ORDER BY s.late), percentile_cont(0.95) WITHIN GROUP (ORDER BY s.late)
FROM m CROSS JOIN LATERAL (
  SELECT h.at, h.kind, h.queue, h.outcome, CASE WHEN h.attempt <= 1
    THEN greatest(0, extract(epoch FROM h.started_at - coalesce(h.run_at, h.at)))::float8 END AS late
  FROM {schema}.job_history h
  WHERE h.tenant = %(tenant)s AND h.at >= m.at AND h.at < m.at + interval '1 minute' AND h.kind <> 'audit'
  ORDER BY h.tenant, h.at DESC LIMIT %(most)s::int4) s
GROUP BY GROUPING SETS ((m.at), (m.at, s.kind, s.queue, s.outcome));

-- name: coming
-- A tenant's registered jobs, the first `most` of them: how many there are (`all`), are paused (`paused`) and come due
-- in each of the next minutes (`minute`), and the ten that are late for the longest (`late`). Always the first two.
WITH t AS (SELECT coalesce(%(now)s::timestamptz, now()) AS now),
j AS MATERIALIZED (
  SELECT j.id, j.next_run_at, j.paused_at FROM {schema}.job j WHERE j.tenant = %(tenant)s
  ORDER BY j.tenant, j.id LIMIT %(most)s::int4),
late AS (
  SELECT j.id, j.next_run_at FROM j, t
  WHERE j.next_run_at < t.now - interval '1 minute' AND j.paused_at IS NULL ORDER BY j.next_run_at LIMIT 10)
SELECT 'all' AS what, NULL::text AS id, NULL::timestamptz AS at, count(*) AS count FROM j
UNION ALL SELECT 'paused', NULL, NULL, count(*) FROM j WHERE j.paused_at IS NOT NULL
UNION ALL SELECT 'minute', NULL, date_trunc('minute', j.next_run_at), count(*) FROM j, t
  WHERE j.paused_at IS NULL AND j.next_run_at >= t.now AND j.next_run_at < t.now + interval '1 minute' * %(minutes)s::int4
  GROUP BY date_trunc('minute', j.next_run_at)
UNION ALL SELECT 'late', late.id, late.next_run_at, 1 FROM late;

-- name: strips
-- The newest ends of each of some registered jobs of a tenant, newest first. No row for one: it never fired.
SELECT p.id, h.at, h.kind, h.outcome, h.reason, h.started_at, h.finished_at
FROM unnest((SELECT %(ids)b::text[])) AS p(id) CROSS JOIN LATERAL (
  SELECT h.at, h.kind, h.outcome, h.reason, h.started_at, h.finished_at FROM {schema}.job_history h
  WHERE h.tenant = %(tenant)s AND h.job_id = p.id AND h.kind <> 'audit'
  ORDER BY h.tenant, h.job_id, h.at DESC LIMIT %(limit)s::int4) h;

-- name: dead
-- A tenant's newest dead letters out of the first `most`, each with how many these are. No row: none.
SELECT l.id::text, l.queue, l.at, h.type, h.attempt, h.reason, h.error, l.total
FROM (
  SELECT l.*, count(*) OVER () AS total FROM (
    SELECT l.id, l.queue, l.at FROM {schema}.job_letter l WHERE l.tenant = %(tenant)s
    ORDER BY l.tenant, l.id LIMIT %(most)s::int4) l
  ORDER BY l.at DESC, l.id LIMIT %(limit)s::int4) l
LEFT JOIN LATERAL (
  SELECT h.type, h.attempt, h.reason, h.error FROM {schema}.job_history h
  WHERE h.tenant = %(tenant)s AND h.job_id = l.id::text AND h.at = l.at AND h.kind = 'job' LIMIT 1) h ON true
ORDER BY l.at DESC, l.id;

-- name: held
-- The leases under way among the first `most` jobs: who runs which fire, since when and until when. No row: nobody.
SELECT l.tenant, l.id, l.owner, l.description, l.fire_at, l.created_at, l.expires_at, l.starts
FROM (SELECT * FROM {schema}.job_lock l ORDER BY l.tenant, l.id LIMIT %(most)s::int4) l
WHERE l.owner IS NOT NULL LIMIT %(limit)s::int4;

-- name: around
-- The open edges of a job: what it waits for, and what waits for it, each with its type, and its end if it has ended.
-- No row: none.
SELECT e.before, e.kind, e.id::text, coalesce(q.type, h.type), h.outcome
FROM (
  (SELECT true AS before, d.kind, d.depends_on AS id FROM {schema}.job_dependency d
   WHERE d.tenant = %(tenant)s AND d.job_id = %(id)s::uuid LIMIT %(limit)s::int4)
  UNION ALL
  (SELECT false, d.kind, d.job_id FROM {schema}.job_dependency d
   WHERE d.tenant = %(tenant)s AND d.depends_on = %(id)s::uuid LIMIT %(limit)s::int4)) e
LEFT JOIN LATERAL (
  SELECT q.type FROM {schema}.job_queue q WHERE q.tenant = %(tenant)s AND q.id = e.id LIMIT 1) q ON true
LEFT JOIN LATERAL (
  SELECT h.type, h.outcome FROM {schema}.job_history h
  WHERE q.type IS NULL AND h.tenant = %(tenant)s AND h.job_id = e.id::text AND h.kind = 'job' LIMIT 1) h ON true;
