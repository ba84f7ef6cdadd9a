-- name: server
-- Who the server is, and how many connections it, the database and the role still allow. Always one row.
SELECT current_setting('server_version_num')::int4, current_setting('transaction_read_only')::boolean,
  least(
    current_setting('max_connections')::int8 - current_setting('superuser_reserved_connections')::int8
      - (SELECT count(*) FROM pg_stat_activity a WHERE a.backend_type = 'client backend'),
    CASE WHEN d.datconnlimit >= 0 THEN d.datconnlimit
      - (SELECT count(*) FROM pg_stat_activity a WHERE a.datid = d.oid AND a.backend_type = 'client backend') END,
    CASE WHEN r.rolconnlimit >= 0 THEN r.rolconnlimit
      - (SELECT count(*) FROM pg_stat_activity a WHERE a.usesysid = r.oid AND a.backend_type = 'client backend') END)
FROM pg_database d, pg_roles r WHERE d.datname = current_database() AND r.rolname = current_user;

-- name: clock
-- The clock of the server. Always one row.
SELECT clock_timestamp();

-- name: skewed
-- Live instances whose wall clock is off by more than that. No row: all is well.
SELECT i.label, i.skew FROM {schema}.job_instance i
WHERE i.expires_at >= now() AND greatest(i.skew, -i.skew) > %(limit)s::interval ORDER BY i.label LIMIT 100;

-- name: missing_rights
-- What this role may not do with our tables. No row: all is well.
SELECT c.relname, p.right FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p("right")
WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND (p.right = 'SELECT' OR c.relname NOT IN ('schema_version', 'installation'))
  AND (p.right IN ('SELECT', 'INSERT') OR c.relname <> 'job_history')
  AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, p.right))
ORDER BY c.relname, p.right;

-- name: say
-- Say something on a channel, for who listens. Always one row, of nothing.
SELECT pg_notify(%(channel)s, '');

-- name: missing_days
-- The days, from today on, that have no partition of the ledger. No row: all is well.
SELECT day::text FROM (
  SELECT (now() AT TIME ZONE 'UTC')::date + days AS day FROM generate_series(0, %(ahead)s::int4) AS days) d
WHERE to_regclass(format('%%I.%%I', %(schema)s::text, 'job_history_' || to_char(day, 'YYYYMMDD'))) IS NULL ORDER BY day;

-- name: unvacuumed
-- Tables with many more dead rows than live ones, or that autovacuum is told to leave alone. No row: all is well.
SELECT s.relname, s.n_live_tup, s.n_dead_tup, o.off FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
CROSS JOIN LATERAL (
  SELECT NOT current_setting('autovacuum')::boolean
    OR coalesce(c.reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off'], false) AS off) o
WHERE s.schemaname = %(schema)s AND (o.off OR s.n_dead_tup > %(dead)s::int8 + 2 * s.n_live_tup)
ORDER BY s.relname LIMIT 100;

-- name: idle_in_transaction
-- Sessions that hold locks on our tables and have done nothing for long. No row: all is well.
SELECT a.pid, a.usename, a.application_name, now() - a.state_change, array_agg(DISTINCT c.relname::text)
FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid AND l.locktype = 'relation' AND l.granted
JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE a.state LIKE 'idle in transaction%%' AND a.state_change <= now() - %(idle)s::interval
  AND n.nspname = %(schema)s AND c.relkind IN ('r', 'p') AND a.datname = current_database()
GROUP BY a.pid, a.usename, a.application_name, a.state_change ORDER BY a.state_change LIMIT 100;

-- name: definitions
-- What is registered, as it is kept. No row: nothing is.
SELECT j.tenant, j.id, j.spec::text FROM {schema}.job j ORDER BY j.tenant, j.id LIMIT %(limit)s;

-- name: stranded
-- Jobs with fires to come, or a trigger, that no live instance can run. An instance that mirrors its tenant can submit the
-- fires of a job with a queue. No row: all is well.
SELECT j.tenant, j.id FROM {schema}.job j
WHERE NOT EXISTS (SELECT FROM {schema}.job_tenant n WHERE n.tenant = j.tenant AND n.paused_at IS NOT NULL)
  AND ((j.paused_at IS NULL AND j.next_run_at IS NOT NULL) OR j.trigger_at IS NOT NULL)
  AND CASE WHEN j.spec ? 'work' THEN NOT EXISTS (
      SELECT FROM {schema}.job_instance i
      WHERE i.expires_at >= now() AND (i.mirrors IS NULL OR j.tenant = ANY(i.mirrors)))
    ELSE (j.tenant, j.id) NOT IN (
      SELECT r.tenant, r.id FROM {schema}.job_instance i, unnest(i.tenants, i.ids) AS r(tenant, id)
      WHERE i.expires_at >= now()) END
ORDER BY j.tenant, j.id LIMIT %(limit)s;

-- name: disappeared
-- Jobs whose rows disappeared without unregister(): those that a live instance has registered, unless they were removed
-- with their lock rows or by `sweep`, and those that were registered again in the last day. No row: all is well.
(SELECT r.tenant, r.id, false AS is_back FROM {schema}.job_instance i, unnest(i.tenants, i.ids) AS r(tenant, id)
 WHERE i.expires_at >= now()
   AND NOT EXISTS (SELECT FROM {schema}.job j WHERE j.tenant = r.tenant AND j.id = r.id)
   AND NOT EXISTS (SELECT FROM {schema}.job_tombstone t WHERE t.tenant = r.tenant AND t.id IN (r.id, ''))
   AND EXISTS (SELECT FROM {schema}.job_lock l WHERE l.tenant = r.tenant AND l.id = r.id AND NOT l.ran_once)
 GROUP BY r.tenant, r.id ORDER BY r.tenant, r.id LIMIT %(limit)s)
UNION ALL
(SELECT h.tenant, h.job_id, true FROM {schema}.job_history h
 WHERE h.kind = 'audit' AND h.outcome = 'registered' AND h.reason = %(reason)s AND h.at > now() - interval '1 day'
 GROUP BY h.tenant, h.job_id ORDER BY h.tenant, h.job_id LIMIT %(limit)s);

-- name: expired_leases
-- Leases that ran out long ago, and nobody took. No row: all is well.
SELECT l.tenant, l.id, l.description, now() - l.expires_at FROM {schema}.job_lock l
WHERE l.expires_at < now() - %(late)s::interval
  AND NOT EXISTS (SELECT FROM {schema}.job_tenant n WHERE n.tenant = l.tenant AND n.paused_at IS NOT NULL)
ORDER BY l.expires_at LIMIT %(limit)s;

-- name: failing
-- Jobs whose newest runs all went wrong. No row: all is well.
SELECT j.tenant, j.id, h.outcome FROM (
  SELECT j.tenant, j.id FROM {schema}.job j ORDER BY j.updated_at DESC LIMIT %(limit)s) j
CROSS JOIN LATERAL (
  SELECT count(*) AS runs, bool_and(r.outcome IN ('failed', 'timeout', 'crashed')) AS wrong, max(r.outcome) AS outcome
  FROM (
    SELECT h.outcome FROM {schema}.job_history h
    WHERE h.tenant = j.tenant AND h.job_id = j.id AND h.kind IN ('fire', 'trigger') AND h.at > now() - interval '7 days'
      AND h.outcome <> 'skipped'
    ORDER BY h.at DESC LIMIT %(runs)s) r) h
WHERE h.wrong AND h.runs = %(runs)s ORDER BY j.tenant, j.id;

-- name: broken_rows
-- Rows that no statement of ours leaves behind: (table, tenant, id). No row: all is well.
(SELECT 'job_ready' AS "table", r.tenant, r.id::text FROM (SELECT * FROM {schema}.job_ready LIMIT 10000) r
 WHERE NOT EXISTS (SELECT FROM {schema}.job_queue q WHERE q.tenant = r.tenant AND q.id = r.id) LIMIT %(limit)s)
UNION ALL
(SELECT 'job_queue', q.tenant, q.id::text FROM (
   SELECT * FROM {schema}.job_queue q WHERE q.open_dependencies > 0 LIMIT 10000) q
 WHERE NOT EXISTS (SELECT FROM {schema}.job_dependency d WHERE d.tenant = q.tenant AND d.job_id = q.id)
 LIMIT %(limit)s);

-- name: unfed
-- Queues with jobs that have been due for long and are not in Redis, though nobody paused them. No row: all is well.
SELECT r.queue, count(*), now() - min(r.run_at) FROM (
  SELECT r.queue, r.run_at FROM {schema}.job_ready r WHERE r.run_at < now() - %(late)s::interval
    AND NOT EXISTS (SELECT FROM {schema}.job_tenant n WHERE n.tenant = r.tenant AND n.paused_at IS NOT NULL)
  LIMIT 10000) r
WHERE NOT EXISTS (SELECT FROM {schema}.job_epoch e WHERE e.queue = r.queue AND e.paused_at IS NOT NULL)
GROUP BY r.queue ORDER BY r.queue;

-- name: paused_queues
-- Queues that somebody paused, and for how long. No row: all is well.
SELECT e.queue, now() - e.paused_at FROM {schema}.job_epoch e WHERE e.paused_at IS NOT NULL ORDER BY e.queue LIMIT 100;

-- name: paused_tenants
-- Tenants that are paused: for how long, and for how long their deletion takes. No row: none is.
SELECT n.tenant, now() - n.paused_at, now() - n.deleting_at FROM {schema}.job_tenant n
WHERE n.paused_at IS NOT NULL ORDER BY n.tenant LIMIT 100;

-- name: letters
-- How many dead letters of the ledger each queue has, as far as one counts. No row: none.
SELECT l.queue, count(*) FROM (SELECT l.queue FROM {schema}.job_letter l LIMIT 10000) l GROUP BY l.queue ORDER BY l.queue;

-- name: silent
-- Jobs that were fed, and of which nothing was heard for long, among the first that lie there. No row: all is well.
SELECT q.tenant, q.id, q.queue, now() - greatest(q.updated_at, q.run_at, q.fed_again_at) FROM (
  SELECT * FROM {schema}.job_queue q
  WHERE q.open_dependencies = 0 AND greatest(q.updated_at, q.run_at, q.fed_again_at) < now() - %(late)s::interval LIMIT 10000) q
LEFT JOIN LATERAL (
  SELECT true AS waits FROM {schema}.job_ready r WHERE r.queue = q.queue AND r.priority = q.priority
    AND r.tenant = q.tenant AND r.run_at = q.run_at AND r.seq = q.seq LIMIT 1) r ON true  -- LIMIT: a probe each
WHERE r.waits IS NULL LIMIT %(limit)s;

-- name: untold
-- Callbacks that were tried in vain: how many, how many are given up, and why the newest failed. Always one row.
SELECT count(*), count(c.gave_up_at), (array_agg(c.error ORDER BY c.created_at DESC))[1] FROM (
  SELECT * FROM {schema}.job_callback c WHERE c.error IS NOT NULL AND (c.attempt >= %(tries)s OR c.gave_up_at IS NOT NULL)
  LIMIT 10000) c;
