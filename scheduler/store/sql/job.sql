-- Audit rows: `greatest(now, last.at)` gives two changes at one moment an instant of their own. Two transactions that
-- commit at the very same microsecond may still meet; then one row stands for both.

-- name: instant
-- The database's clock. Always one row.
SELECT coalesce(%(now)s::timestamptz, clock_timestamp());

-- name: mirror
-- Jobs, leases and outcomes of the named tenants (NULL: of all). The ledger is not read, so the cost does not depend on its
-- partitions. No row: the job is gone.
SELECT j.tenant, j.id, j.spec_hash, j.next_run_at, coalesce(j.paused_at, t.paused_at), j.trigger_at, l.fire_at,
       l.description, greatest(j.ledger_at, l.ledger_at),
       CASE WHEN n.run THEN l.ledger_outcome ELSE j.ledger_outcome END,
       CASE WHEN n.run THEN l.ledger_finished_at ELSE j.ledger_finished_at END,
       j.spec::text, t.paused_at IS NOT NULL, j.app, j.version
FROM {schema}.job j
LEFT JOIN {schema}.job_lock l ON l.tenant = j.tenant AND l.id = j.id
LEFT JOIN {schema}.job_tenant t ON t.tenant = j.tenant AND t.paused_at IS NOT NULL
CROSS JOIN LATERAL (SELECT coalesce(l.ledger_at >= j.ledger_at, j.ledger_at IS NULL) AS run) n
WHERE %(tenants)b::text[] IS NULL OR j.tenant = ANY(%(tenants)b::text[]);

-- name: page
-- The same of one tenant, by id, from the one after `after` on. No row: that was all.
SELECT j.tenant, j.id, j.spec_hash, j.next_run_at, coalesce(j.paused_at, t.paused_at), j.trigger_at, l.fire_at,
       l.description, greatest(j.ledger_at, l.ledger_at),
       CASE WHEN n.run THEN l.ledger_outcome ELSE j.ledger_outcome END,
       CASE WHEN n.run THEN l.ledger_finished_at ELSE j.ledger_finished_at END,
       j.spec::text, t.paused_at IS NOT NULL, j.app, j.version
FROM (
  SELECT j.* FROM {schema}.job j WHERE j.tenant = %(tenant)s AND j.id > %(after)s
  ORDER BY j.tenant, j.id LIMIT %(limit)s) j
LEFT JOIN LATERAL (
  SELECT * FROM {schema}.job_lock l WHERE l.tenant = j.tenant AND l.id = j.id LIMIT 1) l ON true
LEFT JOIN LATERAL (
  SELECT t.paused_at FROM {schema}.job_tenant t
  WHERE t.tenant = %(tenant)s AND t.paused_at IS NOT NULL LIMIT 1) t ON true
CROSS JOIN LATERAL (SELECT coalesce(l.ledger_at >= j.ledger_at, j.ledger_at IS NULL) AS run) n
ORDER BY j.tenant, j.id;

-- name: lookup
-- Named jobs, what their lock rows remember, and the tombstones of jobs and tenants. A NULL spec_hash: not registered.
SELECT j.spec_hash, j.next_run_at, j.paused_at, j.created_at, greatest(j.last_fire_at, l.last_fire_at), j.spec::text,
       coalesce(%(now)s::timestamptz, clock_timestamp()), j.app, j.version, t.deleted_at, t.app, t.version, d.deleted_at,
       coalesce(l.ran_once, false), (SELECT i.forgotten_before FROM {schema}.installation i)
FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[])) WITH ORDINALITY AS p(tenant, id, ord)
LEFT JOIN LATERAL (SELECT * FROM {schema}.job j WHERE j.tenant = p.tenant AND j.id = p.id) j ON true
LEFT JOIN LATERAL (SELECT * FROM {schema}.job_lock l WHERE l.tenant = p.tenant AND l.id = p.id) l ON true
LEFT JOIN LATERAL (SELECT * FROM {schema}.job_tombstone t WHERE t.tenant = p.tenant AND t.id = p.id) t ON true
LEFT JOIN LATERAL (SELECT * FROM {schema}.job_tombstone d WHERE d.tenant = p.tenant AND d.id = '') d ON true
ORDER BY p.ord;

-- name: newest_fires
-- The newest fire of each named job in the ledger, from an instant on: also of fires that were skipped or queued, which
-- job_lock does not have. Always one row for each job. NULL: the ledger has none.
SELECT h.at
FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(since)b::timestamptz[]))
  WITH ORDINALITY AS p(tenant, id, since, ord)
LEFT JOIN LATERAL (
  SELECT h.at FROM {schema}.job_history h
  WHERE h.tenant = p.tenant AND h.job_id = p.id AND h.kind = 'fire' AND h.at >= p.since
  ORDER BY h.tenant, h.job_id, h.at DESC LIMIT 1) h ON true
ORDER BY p.ord;

-- name: insert
-- New jobs with their lock rows, in this order: only the transaction that holds a job inserts its lock row. No row back:
-- another instance registered that job first; or it has fired or was unregistered, or older fires were forgotten, since it
-- was looked up, so its first fire was computed from old values. Read it again.
-- `skips`: a fire that is recorded as skipped, because it is not known whether it has run.
-- Raises if a tenant is being deleted; a deletion that begins later waits for this statement.
WITH p AS MATERIALIZED (
  SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(specs)b::text[]),
                       (SELECT %(hashes)b::bytea[]), (SELECT %(deliveries)b::text[]), (SELECT %(overlaps)b::text[]),
                       (SELECT %(nexts)b::timestamptz[]), (SELECT %(last_fires)b::timestamptz[]),
                       (SELECT %(apps)b::text[]), (SELECT %(versions)b::int8[]), (SELECT %(paused)b::timestamptz[]),
                       (SELECT %(deleted)b::timestamptz[]), (SELECT %(skips)b::timestamptz[]),
                       (SELECT %(forgotten)b::timestamptz[]))
    AS p(tenant, id, spec, spec_hash, delivery, overlap, next_run_at, last_fire_at, app, version, paused_at, deleted_at,
         skip_at, forgotten_before)
  ORDER BY p.tenant COLLATE "C", p.id COLLATE "C"),
stopped AS MATERIALIZED (
  SELECT n.tenant, n.deleting_at FROM (SELECT DISTINCT p.tenant FROM p) p CROSS JOIN LATERAL (
    SELECT n.tenant, n.deleting_at FROM {schema}.job_tenant n
    WHERE n.tenant = p.tenant AND n.paused_at IS NOT NULL FOR KEY SHARE) n),
new AS (
  INSERT INTO {schema}.job (tenant, id, spec, spec_hash, delivery, overlap, next_run_at, created_at, updated_at,
    paused_at, app, version, last_fire_at, fence, ledger_at, ledger_outcome, ledger_finished_at)
  SELECT p.tenant, p.id, p.spec::jsonb, p.spec_hash, p.delivery, p.overlap, p.next_run_at, t.now, t.now,
    p.paused_at, p.app, p.version, greatest(l.last_fire_at, p.skip_at), coalesce(l.fence, i.fence), p.skip_at,
    CASE WHEN p.skip_at IS NOT NULL THEN 'skipped' END, CASE WHEN p.skip_at IS NOT NULL THEN t.now END
  FROM (SELECT coalesce(%(now)s::timestamptz, now()) AS now) t CROSS JOIN {schema}.installation i CROSS JOIN p
  LEFT JOIN LATERAL (
    SELECT l.last_fire_at, l.fence FROM {schema}.job_lock l WHERE l.tenant = p.tenant AND l.id = p.id) l ON true
  WHERE l.last_fire_at IS NOT DISTINCT FROM p.last_fire_at AND p.deleted_at IS NOT DISTINCT FROM (
    SELECT d.deleted_at FROM {schema}.job_tombstone d WHERE d.tenant = p.tenant AND d.id = p.id)
    AND i.forgotten_before IS NOT DISTINCT FROM p.forgotten_before
  ON CONFLICT DO NOTHING RETURNING tenant, id, created_at, ledger_at),
locks AS (
  INSERT INTO {schema}.job_lock (tenant, id) SELECT tenant, id FROM new ON CONFLICT DO NOTHING),
alive AS (
  DELETE FROM {schema}.job_tombstone d USING new n WHERE d.tenant = n.tenant AND d.id = n.id),
skipped AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, reason, holder, finished_at)
  SELECT ledger_at, tenant, id, 'fire', 'skipped', 'retention', %(holder)s, created_at
  FROM new WHERE ledger_at IS NOT NULL ON CONFLICT DO NOTHING),
audit AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, reason, holder, finished_at)
  SELECT greatest(n.created_at, last.at), n.tenant, n.id, 'audit', 'registered', %(note)s::text, %(holder)s, n.created_at
  FROM new n CROSS JOIN LATERAL (
    SELECT max(y.at) + interval '1 microsecond' AS at FROM {schema}.job_history y
    WHERE y.tenant = n.tenant AND y.job_id = n.id AND y.kind = 'audit' AND y.at >= n.created_at) last
  ORDER BY last.at  -- so all are looked for before one is written: else each look may go through those
  ON CONFLICT DO NOTHING)
SELECT new.tenant, new.id, pg_notify(%(channel)s, ''), (
  SELECT {schema}.refuse_tenant(n.tenant) FROM stopped n WHERE n.deleting_at IS NOT NULL LIMIT 1)
FROM new;

-- name: change
-- New definitions of known jobs, compare-and-set. A definition that only another version registers is no change: only its
-- app and version are stored. No row back: another instance has changed the row; read it again.
WITH p AS MATERIALIZED (
  SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(specs)b::text[]),
                       (SELECT %(hashes)b::bytea[]), (SELECT %(deliveries)b::text[]), (SELECT %(overlaps)b::text[]),
                       (SELECT %(nexts)b::timestamptz[]), (SELECT %(apps)b::text[]), (SELECT %(versions)b::int8[]),
                       (SELECT %(notes)b::text[]), (SELECT %(old_hashes)b::bytea[]), (SELECT %(old_specs)b::text[]),
                       (SELECT %(old_nexts)b::timestamptz[]), (SELECT %(old_apps)b::text[]),
                       (SELECT %(old_versions)b::int8[]))
    AS p(tenant, id, spec, spec_hash, delivery, overlap, next_run_at, app, version, note, old_hash, old_spec, old_next,
         old_app, old_version)
  ORDER BY p.tenant COLLATE "C", p.id COLLATE "C"),
held AS MATERIALIZED (
  SELECT p.*, p.spec_hash <> p.old_hash OR p.spec::jsonb <> p.old_spec::jsonb AS changes,
    coalesce(%(now)s::timestamptz, now()) AS now
  FROM p CROSS JOIN LATERAL (
    SELECT FROM {schema}.job j WHERE j.tenant = p.tenant AND j.id = p.id
      AND j.spec_hash = p.old_hash AND j.next_run_at IS NOT DISTINCT FROM p.old_next AND j.spec = p.old_spec::jsonb
      AND j.app IS NOT DISTINCT FROM p.old_app AND j.version IS NOT DISTINCT FROM p.old_version
    FOR NO KEY UPDATE) j),
changed AS (
  UPDATE {schema}.job j SET spec = h.spec::jsonb, spec_hash = h.spec_hash, delivery = h.delivery, overlap = h.overlap,
    next_run_at = h.next_run_at, app = h.app, version = h.version,
    updated_at = CASE WHEN h.changes THEN h.now ELSE j.updated_at END
  FROM held h WHERE j.tenant = h.tenant AND j.id = h.id),
audit AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, reason, holder, finished_at)
  SELECT greatest(h.now, last.at), h.tenant, h.id, 'audit', 'changed', coalesce(h.note || ', ', '') || 'next run ' || coalesce(
    to_char(h.next_run_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'none'), %(holder)s, h.now
  FROM held h CROSS JOIN LATERAL (
    SELECT max(y.at) + interval '1 microsecond' AS at FROM {schema}.job_history y
    WHERE y.tenant = h.tenant AND y.job_id = h.id AND y.kind = 'audit' AND y.at >= h.now) last
  WHERE h.changes ORDER BY last.at  -- as above
  ON CONFLICT DO NOTHING)
SELECT tenant, id, pg_notify(%(channel)s, '') FROM held;

-- name: remove
-- Unregister: delete the job, unless a higher version has registered it and `forced` is false, and leave a tombstone, which
-- keeps its version if that is higher. The lock row stays, with the newest fire and fence. Always one row: whether the job
-- was deleted, and whether it is of a higher version.
WITH t AS (SELECT coalesce(%(now)s::timestamptz, now()) AS now),
newer AS (
  SELECT FROM {schema}.job j WHERE j.tenant = %(tenant)s AND j.id = %(id)s AND NOT %(forced)s::bool
    AND j.app IS NOT DISTINCT FROM %(app)s::text AND j.version > coalesce(%(version)s::int8, -1)),
gone AS (
  DELETE FROM {schema}.job j WHERE j.tenant = %(tenant)s AND j.id = %(id)s AND (%(forced)s::bool
    OR j.app IS DISTINCT FROM %(app)s::text OR coalesce(j.version, -1) <= coalesce(%(version)s::int8, -1))
  RETURNING j.*),
tombstone AS (
  INSERT INTO {schema}.job_tombstone AS d (tenant, id, app, version, deleted_at)
  SELECT %(tenant)s, %(id)s, %(app)s::text, %(version)s::int8, t.now FROM t WHERE NOT EXISTS (SELECT FROM newer)
  ON CONFLICT (tenant, id) DO UPDATE
  SET app = excluded.app, version = excluded.version, deleted_at = excluded.deleted_at
  WHERE d.app IS DISTINCT FROM excluded.app OR coalesce(d.version, -1) <= coalesce(excluded.version, -1)),
remembered AS (
  INSERT INTO {schema}.job_lock AS l (tenant, id, last_fire_at, fence, ledger_at, ledger_outcome, ledger_finished_at)
  SELECT tenant, id, last_fire_at, fence, ledger_at, ledger_outcome, ledger_finished_at FROM gone
  ON CONFLICT (tenant, id) DO UPDATE SET last_fire_at = greatest(l.last_fire_at, excluded.last_fire_at),
    fence = greatest(l.fence, excluded.fence), ran_once = false, ledger_at = greatest(l.ledger_at, excluded.ledger_at),
    ledger_outcome = CASE WHEN coalesce(l.ledger_at >= excluded.ledger_at, excluded.ledger_at IS NULL)
      THEN l.ledger_outcome ELSE excluded.ledger_outcome END,
    ledger_finished_at = CASE WHEN coalesce(l.ledger_at >= excluded.ledger_at, excluded.ledger_at IS NULL)
      THEN l.ledger_finished_at ELSE excluded.ledger_finished_at END),
audit AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, holder, finished_at)
  SELECT greatest(t.now, last.at), g.tenant, g.id, 'audit', 'unregistered', %(holder)s, t.now
  FROM t CROSS JOIN gone g CROSS JOIN LATERAL (
    SELECT max(y.at) + interval '1 microsecond' AS at FROM {schema}.job_history y
    WHERE y.tenant = g.tenant AND y.job_id = g.id AND y.kind = 'audit' AND y.at >= t.now) last
  ON CONFLICT DO NOTHING)
SELECT g.id IS NOT NULL, EXISTS (SELECT FROM newer), CASE WHEN g.id IS NOT NULL THEN pg_notify(%(channel)s, '') END
FROM t LEFT JOIN gone g ON true;

-- name: pause
-- From now on its fires pass it by; a run under way ends as it would have. No row back: there is no such job.
WITH held AS MATERIALIZED (
  SELECT j.tenant, j.id, j.paused_at, coalesce(%(now)s::timestamptz, now()) AS now
  FROM {schema}.job j WHERE j.tenant = %(tenant)s AND j.id = %(id)s FOR NO KEY UPDATE),
paused AS (
  UPDATE {schema}.job j SET paused_at = h.now, updated_at = h.now
  FROM held h WHERE h.paused_at IS NULL AND j.tenant = h.tenant AND j.id = h.id),
audit AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, holder, finished_at)
  SELECT greatest(h.now, last.at), h.tenant, h.id, 'audit', 'paused', %(holder)s, h.now
  FROM held h CROSS JOIN LATERAL (
    SELECT max(y.at) + interval '1 microsecond' AS at FROM {schema}.job_history y
    WHERE y.tenant = h.tenant AND y.job_id = h.id AND y.kind = 'audit' AND y.at >= h.now) last
  WHERE h.paused_at IS NULL ON CONFLICT DO NOTHING)
SELECT coalesce(paused_at, now), pg_notify(%(channel)s, '') FROM held;

-- name: resume
-- Go on with a fire that was computed from the row as it was; those that passed meanwhile are one row of the ledger,
-- and are never given out again. No row back: it changed, or is not paused; look again.
WITH held AS MATERIALIZED (
  SELECT j.tenant, j.id, coalesce(%(now)s::timestamptz, now()) AS now,
    coalesce(%(fire)s::timestamptz >= j.ledger_at, %(fire)s::timestamptz IS NOT NULL) AS newest
  FROM {schema}.job j
  WHERE j.tenant = %(tenant)s AND j.id = %(id)s AND j.paused_at IS NOT NULL AND j.spec_hash = %(spec_hash)s
    AND j.next_run_at IS NOT DISTINCT FROM %(old_next)s::timestamptz
  FOR NO KEY UPDATE),
resumed AS (
  UPDATE {schema}.job j SET paused_at = NULL, next_run_at = %(next)s, updated_at = h.now,
    last_fire_at = greatest(j.last_fire_at, %(fire)s::timestamptz),
    ledger_at = greatest(j.ledger_at, %(fire)s::timestamptz),
    ledger_outcome = CASE WHEN h.newest THEN 'skipped' ELSE j.ledger_outcome END,
    ledger_finished_at = CASE WHEN h.newest THEN h.now ELSE j.ledger_finished_at END
  FROM held h WHERE j.tenant = h.tenant AND j.id = h.id),
skipped AS (
  INSERT INTO {schema}.job_history
    (at, tenant, job_id, kind, outcome, reason, holder, finished_at, missed_from, missed_count)
  SELECT %(fire)s, h.tenant, h.id, 'fire', 'skipped', 'paused', %(holder)s, h.now, %(missed_from)s, %(missed_count)s
  FROM held h WHERE %(fire)s::timestamptz IS NOT NULL ON CONFLICT DO NOTHING),
audit AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, holder, finished_at)
  SELECT greatest(h.now, last.at), h.tenant, h.id, 'audit', 'resumed', %(holder)s, h.now
  FROM held h CROSS JOIN LATERAL (
    SELECT max(y.at) + interval '1 microsecond' AS at FROM {schema}.job_history y
    WHERE y.tenant = h.tenant AND y.job_id = h.id AND y.kind = 'audit' AND y.at >= h.now) last
  ON CONFLICT DO NOTHING)
SELECT tenant, pg_notify(%(channel)s, '') FROM held;

-- name: trigger
-- Ask for a run beside the schedule; one that is asked for already stands for both. Its instant is its own, for the
-- ledger has one row for each. No row back: there is no such job.
WITH held AS MATERIALIZED (
  SELECT j.tenant, j.id, j.trigger_at, coalesce(%(now)s::timestamptz, now()) AS now
  FROM {schema}.job j WHERE j.tenant = %(tenant)s AND j.id = %(id)s FOR NO KEY UPDATE),
named AS (
  UPDATE {schema}.job_lock l SET last_trigger_at = greatest(h.now, l.last_trigger_at + interval '1 microsecond')
  FROM held h WHERE h.trigger_at IS NULL AND l.tenant = h.tenant AND l.id = h.id
  RETURNING l.tenant, l.id, l.last_trigger_at),
asked AS (
  UPDATE {schema}.job j SET trigger_at = coalesce(n.last_trigger_at, h.now)  -- its lock row was deleted
  FROM held h LEFT JOIN named n ON true WHERE h.trigger_at IS NULL AND j.tenant = h.tenant AND j.id = h.id)
SELECT coalesce(h.trigger_at, n.last_trigger_at, h.now), pg_notify(%(channel)s, '')
FROM held h LEFT JOIN named n ON true;

-- name: explain
-- Everything that is known of one job. No row: there is no such job.
SELECT j.spec::text, j.next_run_at, coalesce(j.paused_at, n.paused_at), j.trigger_at, l.fire_at, l.description,
       l.expires_at, h.at, h.outcome, h.reason, h.error, coalesce(%(now)s::timestamptz, now()),
       n.paused_at, j.app, j.version
FROM {schema}.job j
LEFT JOIN {schema}.job_lock l ON l.tenant = j.tenant AND l.id = j.id
LEFT JOIN LATERAL (
  SELECT h.* FROM {schema}.job_history h
  WHERE h.tenant = j.tenant AND h.job_id = j.id AND h.kind <> 'audit' ORDER BY h.at DESC LIMIT 1) h ON true
LEFT JOIN {schema}.job_tenant n ON n.tenant = j.tenant
WHERE j.tenant = %(tenant)s AND j.id = %(id)s;

-- name: changes
-- The newest registrations and changes of a job, newest first. No row: the ledger has none any more.
SELECT h.at, h.outcome, h.reason, h.holder FROM {schema}.job_history h
WHERE h.tenant = %(tenant)s AND h.job_id = %(id)s AND h.kind = 'audit'
  AND h.outcome IN ('registered', 'changed', 'unregistered')
ORDER BY h.at DESC LIMIT %(limit)s;

-- name: forget
-- Move the moment before which fires are forgotten. It is committed before `sweep` removes what knew of them. No row back:
-- it was moved less than `every` ago, by any instance.
UPDATE {schema}.installation i SET forgotten_before = coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval
WHERE coalesce(
  i.forgotten_before < coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval - %(every)s::interval, true)
RETURNING i.forgotten_before;

-- name: sweep
-- Remove one-time jobs that ended before a moment, and lock rows without a job to which nothing has happened since; each up
-- to a limit, and none that another transaction holds. Always one row: how many jobs, and how many lock rows without a
-- job. The lock row of a one-time job without a start stays: only it shows that the job has run. Lock order: job, then
-- job_lock.
WITH ended AS MATERIALIZED (
  SELECT j.tenant, j.id, j.spec ? 'start_at' AS has_start, greatest(j.last_fire_at, l.last_fire_at) AS last_fire_at,
    greatest(j.fence, l.fence) AS fence
  FROM {schema}.job j JOIN {schema}.job_lock l ON l.tenant = j.tenant AND l.id = j.id
  WHERE j.next_run_at IS NULL AND j.trigger_at IS NULL AND NOT j.spec ?| ARRAY['every_us', 'cron'] AND l.owner IS NULL
    AND greatest(j.updated_at, j.ledger_finished_at, l.ledger_finished_at, l.last_fire_at, l.last_trigger_at)
      < %(before)s::timestamptz
  ORDER BY j.tenant, j.id LIMIT %(limit)s FOR UPDATE OF j, l SKIP LOCKED),
orphans AS MATERIALIZED (
  SELECT l.tenant, l.id, l.fence FROM {schema}.job_lock l
  WHERE l.owner IS NULL AND NOT l.ran_once
    AND coalesce(greatest(l.last_fire_at, l.last_trigger_at, l.ledger_finished_at) < %(before)s::timestamptz, true)
    AND NOT EXISTS (SELECT FROM {schema}.job j WHERE j.tenant = l.tenant AND j.id = l.id)
  ORDER BY l.tenant, l.id LIMIT %(limit)s FOR UPDATE OF l SKIP LOCKED),
jobs AS (
  DELETE FROM {schema}.job j USING ended e WHERE j.tenant = e.tenant AND j.id = e.id),
remembered AS (
  UPDATE {schema}.job_lock l SET ran_once = true, last_fire_at = e.last_fire_at, fence = e.fence
  FROM ended e WHERE NOT e.has_start AND l.tenant = e.tenant AND l.id = e.id),
locks AS (
  DELETE FROM {schema}.job_lock l USING (
    SELECT tenant, id FROM ended WHERE has_start UNION ALL SELECT tenant, id FROM orphans) r
  WHERE l.tenant = r.tenant AND l.id = r.id),
fences AS (
  UPDATE {schema}.installation i SET fence = f.fence
  FROM (SELECT max(fence) AS fence FROM (SELECT fence FROM ended UNION ALL SELECT fence FROM orphans) r) f
  WHERE f.fence > i.fence)
SELECT (SELECT count(*) FROM ended), (SELECT count(*) FROM orphans);
