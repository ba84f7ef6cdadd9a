-- Arrays come in as `unnest((SELECT ..))`: the planner then expects ten rows whatever their length, and probes by
-- primary key. Knowing that there are a thousand it would hash the whole table, for each batch.

-- name: claim
-- One row per job asked for. verdict 'run': the lease is ours; 'skip': advanced without a run, the ledger says so;
-- 'pass': that fire had run before, advanced; NULL: not ours, with the present row to heal the mirror by.
-- Never waits: a row that another transaction holds is not ours. The compare-and-set on (next_run_at, spec_hash) is
-- evaluated on the newest row version, after the lock. Lock order: job, then job_lock.
-- A lock row that was deleted is inserted, if the snapshot has none and no transaction has raised the fence of the job
-- since. Every transaction that inserts a lock row holds the row of job and raises its fence, so two never insert one.
-- Nothing is claimed for a paused tenant by a statement that begins after the pause was committed.
WITH due AS MATERIALIZED (
  SELECT p.*, j.delivery, greatest(j.fence, l.fence) + 1 AS fence, CASE
    WHEN j.fence IS NULL THEN NULL
    WHEN l.fence IS NULL AND (
      (SELECT s.fence FROM {schema}.job_lock s WHERE s.tenant = p.tenant AND s.id = p.id) IS NOT NULL
      OR j.fence <> (SELECT s.fence FROM {schema}.job s WHERE s.tenant = p.tenant AND s.id = p.id)) THEN NULL
    WHEN greatest(j.last_fire_at, l.last_fire_at) >= p.fire_at THEN 'pass'
    WHEN p.skipped IS NOT NULL THEN 'skip'
    WHEN l.owner IS NULL THEN 'run' ELSE 'skip' END AS verdict
  FROM (
    SELECT *, coalesce(%(now)s::timestamptz, now()) AS now
    FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(hashes)b::bytea[]),
                (SELECT %(seen)b::timestamptz[]), (SELECT %(fires)b::timestamptz[]),
                (SELECT %(nexts)b::timestamptz[]), (SELECT %(missed_from)b::timestamptz[]),
                (SELECT %(missed_count)b::int8[]), (SELECT %(skipped)b::text[]))
      WITH ORDINALITY AS p(tenant, id, spec_hash, seen, fire_at, next_run_at, missed_from, missed_count, skipped, ord)
    ORDER BY p.tenant COLLATE "C", p.id COLLATE "C") p
  LEFT JOIN LATERAL (
    SELECT j.last_fire_at, j.fence, j.overlap, j.delivery FROM {schema}.job j
    WHERE j.tenant = p.tenant AND j.id = p.id AND j.next_run_at = p.seen AND j.spec_hash = p.spec_hash
      AND j.paused_at IS NULL AND p.fire_at >= p.seen AND p.fire_at <= p.now
      AND NOT EXISTS (SELECT FROM {schema}.job_tenant n WHERE n.tenant = p.tenant AND n.paused_at IS NOT NULL)
      AND (p.next_run_at IS NULL OR p.next_run_at > p.fire_at)
    FOR NO KEY UPDATE SKIP LOCKED) j ON true
  LEFT JOIN LATERAL (
    SELECT l.last_fire_at, l.fence, l.owner FROM {schema}.job_lock l
    WHERE j.fence IS NOT NULL AND l.tenant = p.tenant AND l.id = p.id
      AND (l.owner IS NULL OR greatest(j.last_fire_at, l.last_fire_at) >= p.fire_at OR p.skipped IS NOT NULL
           OR (j.overlap = 'skip' AND NOT l.triggered AND l.expires_at >= p.now AND l.created_at <= p.seen
               AND p.next_run_at IS NOT NULL))
    FOR NO KEY UPDATE SKIP LOCKED) l ON true),
advance AS (
  UPDATE {schema}.job j SET next_run_at = d.next_run_at, last_fire_at = greatest(j.last_fire_at, d.fire_at),
    fence = CASE d.verdict WHEN 'run' THEN d.fence ELSE j.fence END,
    ledger_at = CASE d.verdict WHEN 'skip' THEN greatest(j.ledger_at, d.fire_at) ELSE j.ledger_at END,
    ledger_outcome = CASE WHEN d.verdict = 'skip' AND coalesce(d.fire_at >= j.ledger_at, true) THEN 'skipped'
      ELSE j.ledger_outcome END,
    ledger_finished_at = CASE WHEN d.verdict = 'skip' AND coalesce(d.fire_at >= j.ledger_at, true) THEN d.now
      ELSE j.ledger_finished_at END
  FROM due d WHERE d.verdict IS NOT NULL AND j.tenant = d.tenant AND j.id = d.id),
lease AS (
  INSERT INTO {schema}.job_lock AS l (tenant, id, owner, fence, fire_at, last_fire_at, created_at, expires_at, starts,
    description, missed_from, missed_count, begun)
  SELECT tenant, id, %(owner)s, fence, fire_at, fire_at, now, now + %(lease)s::interval, 1, %(label)s, missed_from,
    missed_count, CASE delivery WHEN 'at_most_once' THEN false END
  FROM due WHERE verdict = 'run'
  ON CONFLICT (tenant, id) DO UPDATE SET owner = excluded.owner, fence = excluded.fence, fire_at = excluded.fire_at,
    last_fire_at = excluded.last_fire_at, created_at = excluded.created_at, expires_at = excluded.expires_at,
    starts = excluded.starts, description = excluded.description, missed_from = excluded.missed_from,
    missed_count = excluded.missed_count, attempts = excluded.attempts, triggered = excluded.triggered,
    begun = excluded.begun),
skipped AS (
  INSERT INTO {schema}.job_history
    (at, tenant, job_id, kind, outcome, reason, holder, finished_at, missed_from, missed_count)
  SELECT fire_at, tenant, id, 'fire', 'skipped', coalesce(skipped, 'overlap'), %(label)s, now, missed_from, missed_count
  FROM due WHERE verdict = 'skip' ON CONFLICT DO NOTHING)
SELECT d.ord, d.verdict, d.fence, d.now, j.next_run_at, j.spec_hash, coalesce(j.paused_at, n.paused_at)
FROM due d
LEFT JOIN LATERAL (
  SELECT j.next_run_at, j.spec_hash, j.paused_at FROM {schema}.job j
  WHERE d.verdict IS NULL AND j.tenant = d.tenant AND j.id = d.id) j ON true
LEFT JOIN LATERAL (
  SELECT n.paused_at FROM {schema}.job_tenant n WHERE d.verdict IS NULL AND n.tenant = d.tenant LIMIT 1) n ON true;

-- name: moved
-- The jobs whose next fire is not the one that was seen, as their rows are now. No row back for one: nobody took it.
SELECT p.ord, coalesce(%(now)s::timestamptz, now()), j.next_run_at, j.spec_hash, j.paused_at
FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(seen)b::timestamptz[]))
  WITH ORDINALITY AS p(tenant, id, seen, ord)
LEFT JOIN LATERAL (
  SELECT j.next_run_at, j.spec_hash, j.paused_at FROM {schema}.job j WHERE j.tenant = p.tenant AND j.id = p.id) j ON true
WHERE j.next_run_at IS DISTINCT FROM p.seen;

-- name: claim_queued
-- One row. verdict 'queue': the fire or trigger became a job, both rows are written; 'skip' and 'pass' as in claim;
-- NULL: not ours, or the job before it still lives, with the present row to heal the mirror by. No lease is taken, and
-- job_lock is only read: every statement that claims a fire holds the row of job.
WITH t AS (SELECT coalesce(%(now)s::timestamptz, now()) AS now),
due AS MATERIALIZED (
  SELECT j.tenant, j.id, t.now, coalesce(%(fire)s::timestamptz >= j.ledger_at, true) AS newest, CASE
    WHEN NOT %(triggered)s::bool AND greatest(j.last_fire_at, l.last_fire_at) >= %(fire)s::timestamptz THEN 'pass'
    WHEN %(skipped)s::text IS NOT NULL THEN 'skip'
    WHEN q.id IS NULL THEN 'queue' ELSE 'skip' END AS verdict
  FROM t CROSS JOIN {schema}.job j LEFT JOIN {schema}.job_lock l ON l.tenant = j.tenant AND l.id = j.id
  LEFT JOIN LATERAL (SELECT q.id FROM {schema}.job_queue q WHERE q.tenant = j.tenant AND q.id = j.queued_id) q ON true
  WHERE j.tenant = %(tenant)s AND j.id = %(id)s AND j.spec_hash = %(spec_hash)s AND %(fire)s::timestamptz <= t.now
    AND NOT EXISTS (SELECT FROM {schema}.job_tenant n WHERE n.tenant = %(tenant)s AND n.paused_at IS NOT NULL)
    AND CASE WHEN %(triggered)s::bool THEN j.trigger_at = %(seen)s::timestamptz AND q.id IS NULL
        ELSE j.next_run_at = %(seen)s::timestamptz AND j.paused_at IS NULL
          AND (%(next)s::timestamptz IS NULL OR %(next)s::timestamptz > %(fire)s::timestamptz)
          AND (q.id IS NULL OR greatest(j.last_fire_at, l.last_fire_at) >= %(fire)s::timestamptz
               OR %(skipped)s::text IS NOT NULL OR j.overlap = 'skip') END
  FOR NO KEY UPDATE OF j SKIP LOCKED),
advance AS (
  UPDATE {schema}.job j SET
    next_run_at = CASE WHEN %(triggered)s::bool THEN j.next_run_at ELSE %(next)s::timestamptz END,
    trigger_at = CASE WHEN %(triggered)s::bool THEN NULL ELSE j.trigger_at END,
    queued_id = CASE WHEN d.verdict = 'queue' THEN %(queued_id)s::uuid ELSE j.queued_id END,
    last_fire_at = CASE WHEN %(triggered)s::bool THEN j.last_fire_at
      ELSE greatest(j.last_fire_at, %(fire)s::timestamptz) END,
    ledger_at = CASE d.verdict WHEN 'pass' THEN j.ledger_at ELSE greatest(j.ledger_at, %(fire)s::timestamptz) END,
    ledger_outcome = CASE WHEN d.verdict = 'pass' OR NOT d.newest THEN j.ledger_outcome
      WHEN d.verdict = 'queue' THEN 'queued' ELSE 'skipped' END,
    ledger_finished_at = CASE WHEN d.verdict = 'pass' OR NOT d.newest THEN j.ledger_finished_at ELSE d.now END
  FROM due d WHERE j.tenant = d.tenant AND j.id = d.id),
queued AS (
  INSERT INTO {schema}.job_queue (tenant, id, type, queue, priority, run_at, created_at, updated_at, expires_at, json,
    payload, policy)
  SELECT d.tenant, %(queued_id)s, %(type)s, %(queue)s, %(priority)s, d.now, d.now, d.now,
    d.now + %(lifetime)s::interval, %(json)s, %(payload)s, %(policy)s::jsonb
  FROM due d WHERE d.verdict = 'queue'
  RETURNING queue, priority, tenant, run_at, seq, id),
ready AS (
  INSERT INTO {schema}.job_ready (queue, priority, tenant, run_at, seq, id)
  SELECT queue, priority, tenant, run_at, seq, id FROM queued),
ledger AS (
  INSERT INTO {schema}.job_history
    (at, tenant, job_id, kind, outcome, reason, holder, finished_at, missed_from, missed_count, job)
  SELECT %(fire)s, d.tenant, d.id, CASE WHEN %(triggered)s::bool THEN 'trigger' ELSE 'fire' END,
    CASE d.verdict WHEN 'queue' THEN 'queued' ELSE 'skipped' END,
    CASE d.verdict WHEN 'queue' THEN NULL ELSE coalesce(%(skipped)s::text, 'overlap') END, %(label)s, d.now,
    %(missed_from)s, %(missed_count)s,
    CASE d.verdict WHEN 'queue' THEN jsonb_build_object('id', %(queued_id)s::uuid, 'queue', %(queue)s::text) END
  FROM due d WHERE d.verdict <> 'pass' ON CONFLICT DO NOTHING)
SELECT d.verdict, t.now, j.next_run_at, j.spec_hash, coalesce(j.paused_at, n.paused_at), j.trigger_at,
       CASE d.verdict WHEN 'queue' THEN pg_notify(%(channel)s, '') END
FROM t LEFT JOIN due d ON true
LEFT JOIN {schema}.job j ON d.verdict IS NULL AND j.tenant = %(tenant)s AND j.id = %(id)s
LEFT JOIN {schema}.job_tenant n ON d.verdict IS NULL AND n.tenant = %(tenant)s;

-- name: claim_triggers
-- One row per trigger asked for. A NULL fence: not ours (taken, or the job runs), with the present row to heal the
-- mirror by. The schedule is not touched: neither next_run_at nor last_fire_at moves. A lock row that was deleted is
-- inserted, as by `claim`.
WITH due AS MATERIALIZED (
  SELECT p.*, j.delivery, CASE
    WHEN j.fence IS NULL OR (l.fence IS NULL AND (
      (SELECT s.fence FROM {schema}.job_lock s WHERE s.tenant = p.tenant AND s.id = p.id) IS NOT NULL
      OR j.fence <> (SELECT s.fence FROM {schema}.job s WHERE s.tenant = p.tenant AND s.id = p.id))) THEN NULL
    ELSE greatest(j.fence, l.fence) + 1 END AS fence
  FROM (
    SELECT *, coalesce(%(now)s::timestamptz, now()) AS now
    FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(hashes)b::bytea[]),
                (SELECT %(triggers)b::timestamptz[]))
      WITH ORDINALITY AS p(tenant, id, spec_hash, trigger_at, ord)
    ORDER BY p.tenant COLLATE "C", p.id COLLATE "C") p
  LEFT JOIN LATERAL (
    SELECT j.fence, j.delivery FROM {schema}.job j
    WHERE j.tenant = p.tenant AND j.id = p.id AND j.trigger_at = p.trigger_at AND j.spec_hash = p.spec_hash
      AND NOT EXISTS (SELECT FROM {schema}.job_tenant n WHERE n.tenant = p.tenant AND n.paused_at IS NOT NULL)
    FOR NO KEY UPDATE SKIP LOCKED) j ON true
  LEFT JOIN LATERAL (
    SELECT l.fence FROM {schema}.job_lock l
    WHERE j.fence IS NOT NULL AND l.tenant = p.tenant AND l.id = p.id AND l.owner IS NULL
    FOR NO KEY UPDATE SKIP LOCKED) l ON true),
cleared AS (
  UPDATE {schema}.job j SET trigger_at = NULL, fence = d.fence
  FROM due d WHERE d.fence IS NOT NULL AND j.tenant = d.tenant AND j.id = d.id),
lease AS (
  INSERT INTO {schema}.job_lock AS l (tenant, id, owner, fence, fire_at, triggered, created_at, expires_at, starts,
    description, last_trigger_at, begun)
  SELECT tenant, id, %(owner)s, fence, trigger_at, true, now, now + %(lease)s::interval, 1, %(label)s, trigger_at,
    CASE delivery WHEN 'at_most_once' THEN false END
  FROM due WHERE fence IS NOT NULL
  ON CONFLICT (tenant, id) DO UPDATE SET owner = excluded.owner, fence = excluded.fence, fire_at = excluded.fire_at,
    triggered = excluded.triggered, created_at = excluded.created_at, expires_at = excluded.expires_at,
    starts = excluded.starts, description = excluded.description, begun = excluded.begun)
SELECT d.ord, d.fence, d.now, j.trigger_at, j.spec_hash
FROM due d
LEFT JOIN LATERAL (
  SELECT j.trigger_at, j.spec_hash FROM {schema}.job j
  WHERE d.fence IS NULL AND j.tenant = d.tenant AND j.id = d.id) j ON true;

-- name: begin
-- Note that the function of a run is about to be called. No row back: the lease was lost.
UPDATE {schema}.job_lock l SET begun = true
WHERE l.tenant = %(tenant)s AND l.id = %(id)s AND l.owner = %(owner)s AND l.fence = %(fence)s
  AND l.fire_at = %(fire_at)s
RETURNING true;

-- name: renew
-- Renew leases. One row for each: whether it is still ours, and if not, whether its lock row is gone or is not for this
-- fire. Then no other process runs the fire, and its end can still be recorded.
WITH mine AS MATERIALIZED (
  SELECT p.*, l.kept, coalesce(%(now)s::timestamptz, now()) AS now
  FROM (SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(fences)b::int8[]),
                             (SELECT %(fires)b::timestamptz[]))
          WITH ORDINALITY AS p(tenant, id, fence, fire_at, ord)
        ORDER BY p.tenant COLLATE "C", p.id COLLATE "C") p
  LEFT JOIN LATERAL (
    SELECT true AS kept FROM {schema}.job_lock l
    WHERE l.tenant = p.tenant AND l.id = p.id AND l.owner = %(owner)s AND l.fence = p.fence AND l.fire_at = p.fire_at
    FOR NO KEY UPDATE) l ON true),
renewed AS (
  UPDATE {schema}.job_lock l SET expires_at = m.now + %(lease)s::interval
  FROM mine m WHERE m.kept AND l.tenant = m.tenant AND l.id = m.id)
SELECT m.ord, m.kept IS NOT NULL, m.kept IS NULL AND (
  SELECT l.fence FROM {schema}.job_lock l WHERE l.tenant = m.tenant AND l.id = m.id AND l.fire_at = m.fire_at) IS NULL
FROM mine m;

-- name: finish
-- End runs: free the lease and write the ledger row. No row back for one: its lease was lost, or this finish was committed
-- before and its answer was lost. `record` distinguishes them.
WITH mine AS MATERIALIZED (
  SELECT p.*, l.starts, l.missed_from, l.missed_count, l.attempts,
    CASE WHEN l.triggered THEN 'trigger' ELSE 'fire' END AS kind, coalesce(p.fire_at >= l.ledger_at, true) AS newest
  FROM (SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(fences)b::int8[]),
                             (SELECT %(fires)b::timestamptz[]), (SELECT %(outcomes)b::text[]),
                             (SELECT %(errors)b::text[]), (SELECT %(started)b::timestamptz[]),
                             (SELECT %(finished)b::timestamptz[]))
          WITH ORDINALITY AS p(tenant, id, fence, fire_at, outcome, error, started_at, finished_at, ord)
        ORDER BY p.tenant COLLATE "C", p.id COLLATE "C") p
  CROSS JOIN LATERAL (
    SELECT l.* FROM {schema}.job_lock l
    WHERE l.tenant = p.tenant AND l.id = p.id AND l.owner = %(owner)s AND l.fence = p.fence AND l.fire_at = p.fire_at
    FOR NO KEY UPDATE) l),
freed AS (
  UPDATE {schema}.job_lock l SET owner = NULL, fire_at = NULL, created_at = NULL, expires_at = NULL, starts = 0,
    description = NULL, missed_from = NULL, missed_count = 0, attempts = '[]', triggered = false, begun = NULL,
    ledger_at = greatest(l.ledger_at, m.fire_at),
    ledger_outcome = CASE WHEN m.newest THEN m.outcome ELSE l.ledger_outcome END,
    ledger_finished_at = CASE WHEN m.newest THEN m.finished_at ELSE l.ledger_finished_at END
  FROM mine m WHERE l.tenant = m.tenant AND l.id = m.id),
ledger AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, fence, attempt, holder, started_at,
    finished_at, missed_from, missed_count, error, attempts)
  SELECT fire_at, tenant, id, kind, outcome, fence, starts, %(label)s, started_at, finished_at, missed_from,
    missed_count, error, nullif(attempts, '[]')
  FROM mine ON CONFLICT DO NOTHING)
SELECT ord FROM mine;

-- name: record
-- Record runs whose finish found no lease. The ledger row is written if the lock row was deleted: neither a lease nor a
-- ledger row is for the fire, and the tenant was not deleted since. A ledger row that this run wrote before is returned
-- too: only the answer was lost. No row back for one: another process runs or has ended the fire, or the tenant was
-- deleted. The mirror does not show the outcome, because no row of job_lock belongs to the run.
WITH p AS MATERIALIZED (
  SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(fences)b::int8[]),
                       (SELECT %(fires)b::timestamptz[]), (SELECT %(kinds)b::text[]), (SELECT %(attempts)b::int4[]),
                       (SELECT %(outcomes)b::text[]), (SELECT %(errors)b::text[]),
                       (SELECT %(started)b::timestamptz[]), (SELECT %(finished)b::timestamptz[]),
                       (SELECT %(missed_from)b::timestamptz[]), (SELECT %(missed_count)b::int8[]))
    WITH ORDINALITY AS p(tenant, id, fence, fire_at, kind, attempt, outcome, error, started_at, finished_at,
                         missed_from, missed_count, ord)
  ORDER BY p.tenant COLLATE "C", p.id COLLATE "C"),
ledger AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, fence, attempt, holder, started_at,
    finished_at, missed_from, missed_count, error)
  SELECT p.fire_at, p.tenant, p.id, p.kind, p.outcome, p.fence, p.attempt, %(label)s, p.started_at, p.finished_at,
    p.missed_from, p.missed_count, p.error
  FROM p WHERE (
    SELECT l.fence FROM {schema}.job_lock l WHERE l.tenant = p.tenant AND l.id = p.id AND l.fire_at = p.fire_at) IS NULL
    AND NOT EXISTS (
      SELECT FROM {schema}.job_tombstone t WHERE t.tenant = p.tenant AND t.id = '' AND t.deleted_at >= p.fire_at)
  ON CONFLICT DO NOTHING RETURNING tenant, job_id, at, kind)
SELECT p.ord FROM p
LEFT JOIN LATERAL (
  SELECT h.fence FROM {schema}.job_history h
  WHERE h.tenant = p.tenant AND h.job_id = p.id AND h.at = p.fire_at AND h.kind = p.kind AND h.fence = p.fence
    AND h.outcome = p.outcome LIMIT 1) h ON true
WHERE h.fence IS NOT NULL OR (p.tenant, p.id, p.fire_at, p.kind) IN (SELECT tenant, job_id, at, kind FROM ledger);

-- name: release
-- Release the leases of fires that this process will not end, so that they can be reclaimed immediately. An unstarted fire
-- counts no start. If `begun` is false, `redrive` discounts it.
WITH mine AS MATERIALIZED (
  SELECT p.* FROM (
    SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(fences)b::int8[]),
                         (SELECT %(fires)b::timestamptz[]), (SELECT %(started)b::bool[]))
      AS p(tenant, id, fence, fire_at, started)
    ORDER BY p.tenant COLLATE "C", p.id COLLATE "C") p
  CROSS JOIN LATERAL (
    SELECT FROM {schema}.job_lock l
    WHERE l.tenant = p.tenant AND l.id = p.id AND l.owner = %(owner)s AND l.fence = p.fence AND l.fire_at = p.fire_at
    FOR NO KEY UPDATE) l)
UPDATE {schema}.job_lock l
SET expires_at = 'epoch', starts = CASE WHEN m.started OR l.begun IS FALSE THEN l.starts ELSE l.starts - 1 END
FROM mine m WHERE l.tenant = m.tenant AND l.id = m.id;

-- name: overdue
-- Expired leases, then leases that expire within `ahead`, each in random order, so that leases of functions that this
-- process does not have do not hide the others. Those of paused tenants wait. No row: every process is alive.
SELECT l.tenant, l.id, l.fence, l.fire_at, l.starts, l.begun, l.expires_at, l.expires_at = 'epoch', x.expired,
       j.delivery
FROM {schema}.job_lock l
CROSS JOIN LATERAL (SELECT l.expires_at < coalesce(%(now)s::timestamptz, now()) AS expired) x
LEFT JOIN {schema}.job j ON j.tenant = l.tenant AND j.id = l.id
WHERE l.owner IS NOT NULL AND l.expires_at < coalesce(%(now)s::timestamptz, now()) + %(ahead)s::interval
  AND (%(tenants)b::text[] IS NULL OR l.tenant = ANY(%(tenants)b::text[]))
  AND NOT EXISTS (SELECT FROM {schema}.job_tenant n WHERE n.tenant = l.tenant AND n.paused_at IS NOT NULL)
ORDER BY NOT x.expired, random() LIMIT %(limit)s;

-- name: redrive
-- Take expired leases to run *their* fires again. No row back: another instance was faster, or it was renewed. A start
-- whose `begun` is false does not count.
WITH lost AS MATERIALIZED (
  SELECT p.*, l.triggered, l.missed_from, l.missed_count, coalesce(%(now)s::timestamptz, now()) AS now,
    greatest(1, CASE WHEN l.begun IS FALSE THEN l.starts ELSE l.starts + 1 END) AS starts
  FROM (SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(fences)b::int8[]),
                             (SELECT %(fires)b::timestamptz[]), (SELECT %(once)b::bool[]))
          WITH ORDINALITY AS p(tenant, id, fence, fire_at, once, ord)
        ORDER BY p.tenant COLLATE "C", p.id COLLATE "C") p
  CROSS JOIN LATERAL (
    SELECT l.* FROM {schema}.job_lock l
    WHERE l.tenant = p.tenant AND l.id = p.id AND l.fence = p.fence AND l.fire_at = p.fire_at AND l.owner IS NOT NULL
      AND l.expires_at < coalesce(%(now)s::timestamptz, now())
      AND NOT EXISTS (SELECT FROM {schema}.job_tenant n WHERE n.tenant = l.tenant AND n.paused_at IS NOT NULL)
    FOR NO KEY UPDATE SKIP LOCKED) l),
taken AS (
  UPDATE {schema}.job_lock l SET owner = %(owner)s, fence = l.fence + 1, created_at = x.now,
    expires_at = x.now + %(lease)s::interval, starts = x.starts, description = %(label)s,
    begun = CASE WHEN x.once THEN false END,
    attempts = CASE WHEN l.begun IS FALSE OR jsonb_array_length(l.attempts) >= l.starts  -- handed back before it started
      THEN l.attempts
      ELSE l.attempts || jsonb_build_object('attempt', l.starts, 'fence', l.fence, 'outcome', 'lost',
                                            'holder', l.description, 'started_at', l.created_at) END
  FROM lost x WHERE l.tenant = x.tenant AND l.id = x.id)
SELECT ord, fire_at, triggered, missed_from, missed_count, fence + 1, starts, now FROM lost;

-- name: redrive_queued
-- Submit the fire of an expired lease as a job, because its job now has a queue, and free the lease. No row back: another
-- instance was faster, the definition has changed, or the job before it still lives. Lock order: job, then job_lock.
WITH lost AS MATERIALIZED (
  SELECT j.tenant, j.id, l.fence, l.fire_at, l.starts, l.begun, l.description, l.created_at, l.missed_from,
    l.missed_count, l.attempts, CASE WHEN l.triggered THEN 'trigger' ELSE 'fire' END AS kind,
    coalesce(%(now)s::timestamptz, now()) AS now, coalesce(l.fire_at >= j.ledger_at, true) AS newest
  FROM {schema}.job j JOIN {schema}.job_lock l ON l.tenant = j.tenant AND l.id = j.id
  LEFT JOIN LATERAL (SELECT q.id FROM {schema}.job_queue q WHERE q.tenant = j.tenant AND q.id = j.queued_id) q ON true
  WHERE j.tenant = %(tenant)s AND j.id = %(id)s AND j.spec_hash = %(spec_hash)s AND q.id IS NULL
    AND l.fence = %(fence)s AND l.fire_at = %(fire_at)s AND l.owner IS NOT NULL
    AND l.expires_at < coalesce(%(now)s::timestamptz, now())
    AND NOT EXISTS (SELECT FROM {schema}.job_tenant n WHERE n.tenant = %(tenant)s AND n.paused_at IS NOT NULL)
  FOR NO KEY UPDATE OF j, l SKIP LOCKED),
advance AS (
  UPDATE {schema}.job j SET queued_id = %(queued_id)s, ledger_at = greatest(j.ledger_at, x.fire_at),
    ledger_outcome = CASE WHEN x.newest THEN 'queued' ELSE j.ledger_outcome END,
    ledger_finished_at = CASE WHEN x.newest THEN x.now ELSE j.ledger_finished_at END
  FROM lost x WHERE j.tenant = x.tenant AND j.id = x.id),
freed AS (
  UPDATE {schema}.job_lock l SET fence = l.fence + 1, owner = NULL, fire_at = NULL, created_at = NULL,
    expires_at = NULL, starts = 0, description = NULL, missed_from = NULL, missed_count = 0, attempts = '[]',
    triggered = false, begun = NULL
  FROM lost x WHERE l.tenant = x.tenant AND l.id = x.id),
queued AS (
  INSERT INTO {schema}.job_queue (tenant, id, type, queue, priority, run_at, created_at, updated_at, expires_at, json,
    payload, policy)
  SELECT x.tenant, %(queued_id)s, %(type)s, %(queue)s, %(priority)s, x.now, x.now, x.now,
    x.now + %(lifetime)s::interval, %(json)s, %(payload)s, %(policy)s::jsonb
  FROM lost x
  RETURNING queue, priority, tenant, run_at, seq, id),
ready AS (
  INSERT INTO {schema}.job_ready (queue, priority, tenant, run_at, seq, id)
  SELECT queue, priority, tenant, run_at, seq, id FROM queued),
ledger AS (
  INSERT INTO {schema}.job_history
    (at, tenant, job_id, kind, outcome, holder, finished_at, missed_from, missed_count, attempts, job)
  SELECT x.fire_at, x.tenant, x.id, x.kind, 'queued', %(label)s, x.now, x.missed_from, x.missed_count,
    CASE WHEN x.begun IS FALSE OR jsonb_array_length(x.attempts) >= x.starts THEN nullif(x.attempts, '[]')
      ELSE x.attempts || jsonb_build_object('attempt', x.starts, 'fence', x.fence, 'outcome', 'lost',
                                            'holder', x.description, 'started_at', x.created_at) END,
    jsonb_build_object('id', %(queued_id)s::uuid, 'queue', %(queue)s::text)
  FROM lost x ON CONFLICT DO NOTHING)
SELECT x.fire_at, pg_notify(%(channel)s, '') FROM lost x;

-- name: bury
-- Record fires that may not start again as crashed, and free their jobs. No row back: another instance did.
WITH dead AS MATERIALIZED (
  SELECT p.tenant, p.id, p.reason, l.fence, l.fire_at, l.starts, l.description, l.created_at, l.missed_from,
    l.missed_count, l.attempts, CASE WHEN l.triggered THEN 'trigger' ELSE 'fire' END AS kind,
    coalesce(%(now)s::timestamptz, now()) AS now, coalesce(l.fire_at >= l.ledger_at, true) AS newest
  FROM (SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(fences)b::int8[]),
                             (SELECT %(fires)b::timestamptz[]), (SELECT %(reasons)b::text[]))
          AS p(tenant, id, fence, fire_at, reason)
        ORDER BY p.tenant COLLATE "C", p.id COLLATE "C") p
  CROSS JOIN LATERAL (
    SELECT l.* FROM {schema}.job_lock l
    WHERE l.tenant = p.tenant AND l.id = p.id AND l.fence = p.fence AND l.fire_at = p.fire_at AND l.owner IS NOT NULL
      AND l.expires_at < coalesce(%(now)s::timestamptz, now())
    FOR NO KEY UPDATE SKIP LOCKED) l),
freed AS (
  UPDATE {schema}.job_lock l SET fence = l.fence + 1, owner = NULL, fire_at = NULL, created_at = NULL,
    expires_at = NULL, starts = 0, description = NULL, missed_from = NULL, missed_count = 0, attempts = '[]',
    triggered = false, begun = NULL, ledger_at = greatest(l.ledger_at, d.fire_at),
    ledger_outcome = CASE WHEN d.newest THEN 'crashed' ELSE l.ledger_outcome END,
    ledger_finished_at = CASE WHEN d.newest THEN d.now ELSE l.ledger_finished_at END
  FROM dead d WHERE l.tenant = d.tenant AND l.id = d.id),
ledger AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, reason, fence, attempt, holder, started_at,
    finished_at, missed_from, missed_count, attempts)
  SELECT fire_at, tenant, id, kind, 'crashed', reason, fence, starts, description, created_at, now, missed_from,
    missed_count, nullif(attempts, '[]')
  FROM dead ON CONFLICT DO NOTHING)
SELECT tenant, id, fire_at FROM dead;
