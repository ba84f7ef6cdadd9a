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
-- How fires and jobs of some tenants ended, minute by minute, the newest `most` of each: since when these are, how late they
-- started (median and 95th, in seconds), the outcome of each fire, the outcome and the queue of each job. No row for a
-- minute: nothing ended. Always a row without a tenant: the time. The last two conditions say nothing new: by them
-- partitions are left out at once, not for each minute anew.
WITH t AS (SELECT coalesce(%(now)s::timestamptz, now()) AS now),
m AS (
  SELECT generate_series(date_trunc('minute', t.now) - interval '1 minute' * (%(minutes)s::int4 - 1),
    date_trunc('minute', t.now), interval '1 minute') AS at FROM t)
SELECT NULL::text AS tenant, NULL::timestamptz AS minute, t.now AS since, NULL::float8 AS usual, NULL::float8 AS late,
  NULL::text[] AS fires, NULL::text[] AS jobs, NULL::text[] AS queues FROM t
UNION ALL
SELECT n.tenant, m.at, s.since, s.usual, s.late, s.fires, s.jobs, s.queues
FROM unnest((SELECT %(tenants)b::text[])) AS n(tenant) CROSS JOIN m CROSS JOIN LATERAL (
  SELECT min(s.at) AS since, percentile_cont(0.5) WITHIN GROUP (ORDER BY s.late) AS usual,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY s.late) AS late,
    array_agg(s.outcome) FILTER (WHERE s.queue IS NULL) AS fires,
    array_agg(s.outcome) FILTER (WHERE s.queue IS NOT NULL) AS jobs,
    array_agg(s.queue) FILTER (WHERE s.queue IS NOT NULL) AS queues
  FROM (
    SELECT h.at, h.queue, h.outcome, CASE WHEN h.attempt <= 1
      THEN greatest(0, date_part('epoch', h.started_at - coalesce(h.run_at, h.at))) END AS late
    FROM {schema}.job_history h
    WHERE h.tenant = n.tenant AND h.at >= m.at AND h.at < m.at + interval '1 minute' AND h.kind <> 'audit'
      AND h.at >= coalesce(%(now)s::timestamptz, now()) - interval '1 minute' * %(minutes)s::int4
      AND h.at < coalesce(%(now)s::timestamptz, now()) + interval '1 minute'
    ORDER BY h.tenant, h.at DESC LIMIT %(most)s::int4) s
  HAVING count(*) > 0) s;

-- name: coming
-- Registered jobs of some tenants, the first `most` of each: how many are paused (`paused`), late (`late`), come due in each
-- of the next minutes (`minute`), or later, if ever (`later`); and the ten that are late for the longest, with their ids.
-- No row of a tenant: it has none.
WITH j AS MATERIALIZED (
  SELECT n.tenant, j.id, j.next_run_at, CASE
    WHEN j.paused_at IS NOT NULL THEN 'paused'
    WHEN j.next_run_at < t.now - interval '1 minute' THEN 'late'
    WHEN j.next_run_at >= t.now AND j.next_run_at < t.now + interval '1 minute' * %(minutes)s::int4 THEN 'minute'
    ELSE 'later' END AS what
  FROM (SELECT coalesce(%(now)s::timestamptz, now()) AS now) t
  CROSS JOIN unnest((SELECT %(tenants)b::text[])) AS n(tenant) CROSS JOIN LATERAL (
    SELECT j.id, j.next_run_at, j.paused_at FROM {schema}.job j WHERE j.tenant = n.tenant
    ORDER BY j.tenant, j.id LIMIT %(most)s::int4) j)
SELECT j.tenant, j.what, NULL::text AS id,
  CASE j.what WHEN 'minute' THEN date_trunc('minute', j.next_run_at) END AS at, count(*) AS count
FROM j GROUP BY j.tenant, j.what, 4
UNION ALL SELECT l.tenant, 'late', l.id, l.next_run_at, 1 FROM (
  SELECT j.*, row_number() OVER (PARTITION BY j.tenant ORDER BY j.next_run_at) AS place
  FROM j WHERE j.what = 'late') l WHERE l.place <= 10;

-- name: strips
-- The newest `most` ends of each of a tenant's registered jobs after one, newest first, with the seconds that it ran. No row
-- for one: it never fired.
SELECT p.id, h.at, h.outcome, h.reason, date_part('epoch', h.finished_at - h.started_at)
FROM (
  SELECT j.id FROM {schema}.job j WHERE j.tenant = %(tenant)s AND j.id > %(after)s
  ORDER BY j.tenant, j.id LIMIT %(limit)s::int4) p
CROSS JOIN LATERAL (
  SELECT h.at, h.outcome, h.reason, h.started_at, h.finished_at FROM {schema}.job_history h
  WHERE h.tenant = %(tenant)s AND h.job_id = p.id AND h.kind <> 'audit'
  ORDER BY h.tenant, h.job_id, h.at DESC LIMIT %(most)s::int4) h;

-- name: dead
-- The newest dead letters of each of some tenants, out of its first `most`, each with how many these are. No row: none.
SELECT n.tenant, l.id::text, l.queue, l.at, h.type, h.attempt, h.reason, h.error, l.total
FROM unnest((SELECT %(tenants)b::text[])) AS n(tenant) CROSS JOIN LATERAL (
  SELECT l.*, count(*) OVER () AS total FROM (
    SELECT l.id, l.queue, l.at FROM {schema}.job_letter l WHERE l.tenant = n.tenant
    ORDER BY l.tenant, l.id LIMIT %(most)s::int4) l
  ORDER BY l.at DESC, l.id LIMIT %(limit)s::int4) l
LEFT JOIN LATERAL (
  SELECT h.type, h.attempt, h.reason, h.error FROM {schema}.job_history h
  WHERE h.tenant = n.tenant AND h.job_id = l.id::text AND h.at = l.at AND h.kind = 'job' LIMIT 1) h ON true
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
