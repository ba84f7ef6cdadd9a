-- Arrays come in as `unnest((SELECT ..))`: the planner then expects ten rows whatever their length, and probes by
-- primary key. Knowing that there are a thousand it would hash the whole table, for each batch.

-- name: claim
-- One row per job asked for. verdict 'run': the lease is ours; 'skip': advanced without a run, the ledger says so;
-- 'pass': that fire had run before, advanced; NULL: not ours, with the present row to heal the mirror by.
-- Never waits: a row that another transaction holds is not ours. The compare-and-set on (next_run_at, spec_hash) is
-- evaluated on the newest row version, after the lock. Lock order: job, then job_lock.
WITH t AS (SELECT coalesce(%(now)s::timestamptz, now()) AS now),
due AS MATERIALIZED (
  SELECT p.*, d.verdict, d.fence, t.now
  FROM t CROSS JOIN (
    SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(hashes)b::bytea[]),
                         (SELECT %(seen)b::timestamptz[]), (SELECT %(fires)b::timestamptz[]),
                         (SELECT %(nexts)b::timestamptz[]), (SELECT %(missed_from)b::timestamptz[]),
                         (SELECT %(missed_count)b::int8[]), (SELECT %(skipped)b::text[]))
      WITH ORDINALITY AS p(tenant, id, spec_hash, seen, fire_at, next_run_at, missed_from, missed_count, skipped, ord)
    ORDER BY p.tenant COLLATE "C", p.id COLLATE "C") p
  LEFT JOIN LATERAL (
    SELECT CASE WHEN l.last_fire_at >= p.fire_at THEN 'pass' WHEN p.skipped IS NOT NULL THEN 'skip'
                WHEN l.owner IS NULL THEN 'run' ELSE 'skip' END AS verdict,
           l.fence + 1 AS fence
    FROM {schema}.job j JOIN {schema}.job_lock l ON l.tenant = j.tenant AND l.id = j.id
    WHERE j.tenant = p.tenant AND j.id = p.id AND j.next_run_at = p.seen AND j.spec_hash = p.spec_hash
      AND j.paused_at IS NULL AND p.fire_at >= p.seen AND p.fire_at <= t.now
      AND (p.next_run_at IS NULL OR p.next_run_at > p.fire_at)
      AND (l.owner IS NULL OR l.last_fire_at >= p.fire_at OR p.skipped IS NOT NULL
           OR (j.overlap = 'skip' AND NOT l.triggered AND l.expires_at >= t.now AND l.created_at <= p.seen AND p.next_run_at IS NOT NULL))
    FOR NO KEY UPDATE OF j, l SKIP LOCKED) d ON true),
advance AS (
  UPDATE {schema}.job j SET next_run_at = d.next_run_at
  FROM due d WHERE d.verdict IS NOT NULL AND j.tenant = d.tenant AND j.id = d.id),
lease AS (
  UPDATE {schema}.job_lock l SET owner = %(owner)s, fence = d.fence, fire_at = d.fire_at, last_fire_at = d.fire_at,
    created_at = d.now, expires_at = d.now + %(lease)s::interval, starts = 1, description = %(label)s,
    missed_from = d.missed_from, missed_count = d.missed_count, attempts = '[]', triggered = false
  FROM due d WHERE d.verdict = 'run' AND l.tenant = d.tenant AND l.id = d.id),
passed AS (
  UPDATE {schema}.job_lock l SET last_fire_at = d.fire_at
  FROM due d WHERE d.verdict = 'skip' AND l.tenant = d.tenant AND l.id = d.id),
skipped AS (
  INSERT INTO {schema}.job_history
    (at, tenant, job_id, kind, outcome, reason, holder, finished_at, missed_from, missed_count)
  SELECT fire_at, tenant, id, 'fire', 'skipped', coalesce(skipped, 'overlap'), %(label)s, now, missed_from, missed_count
  FROM due WHERE verdict = 'skip' ON CONFLICT DO NOTHING)
SELECT d.ord, d.verdict, d.fence, d.now, j.next_run_at, j.spec_hash, j.paused_at
FROM due d
LEFT JOIN LATERAL (
  SELECT j.next_run_at, j.spec_hash, j.paused_at FROM {schema}.job j
  WHERE d.verdict IS NULL AND j.tenant = d.tenant AND j.id = d.id) j ON true;

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
-- NULL: not ours, or the job before it still lives, with the present row to heal the mirror by. No lease is taken.
WITH t AS (SELECT coalesce(%(now)s::timestamptz, now()) AS now),
due AS MATERIALIZED (
  SELECT j.tenant, j.id, t.now, CASE
    WHEN NOT %(triggered)s::bool AND l.last_fire_at >= %(fire)s::timestamptz THEN 'pass'
    WHEN %(skipped)s::text IS NOT NULL THEN 'skip'
    WHEN q.id IS NULL THEN 'queue' ELSE 'skip' END AS verdict
  FROM t CROSS JOIN {schema}.job j JOIN {schema}.job_lock l ON l.tenant = j.tenant AND l.id = j.id
  LEFT JOIN LATERAL (SELECT q.id FROM {schema}.job_queue q WHERE q.tenant = j.tenant AND q.id = j.queued_id) q ON true
  WHERE j.tenant = %(tenant)s AND j.id = %(id)s AND j.spec_hash = %(spec_hash)s AND %(fire)s::timestamptz <= t.now
    AND CASE WHEN %(triggered)s::bool THEN j.trigger_at = %(seen)s::timestamptz AND q.id IS NULL
        ELSE j.next_run_at = %(seen)s::timestamptz AND j.paused_at IS NULL
          AND (%(next)s::timestamptz IS NULL OR %(next)s::timestamptz > %(fire)s::timestamptz)
          AND (q.id IS NULL OR l.last_fire_at >= %(fire)s::timestamptz OR %(skipped)s::text IS NOT NULL
               OR j.overlap = 'skip') END
  FOR NO KEY UPDATE OF j, l SKIP LOCKED),
advance AS (
  UPDATE {schema}.job j SET
    next_run_at = CASE WHEN %(triggered)s::bool THEN j.next_run_at ELSE %(next)s::timestamptz END,
    trigger_at = CASE WHEN %(triggered)s::bool THEN NULL ELSE j.trigger_at END,
    queued_id = CASE WHEN d.verdict = 'queue' THEN %(queued_id)s::uuid ELSE j.queued_id END
  FROM due d WHERE j.tenant = d.tenant AND j.id = d.id),
given_out AS (
  UPDATE {schema}.job_lock l SET last_fire_at = %(fire)s::timestamptz
  FROM due d WHERE NOT %(triggered)s::bool AND d.verdict <> 'pass' AND l.tenant = d.tenant AND l.id = d.id),
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
SELECT d.verdict, t.now, j.next_run_at, j.spec_hash, j.paused_at, j.trigger_at,
       CASE d.verdict WHEN 'queue' THEN pg_notify(%(channel)s, '') END
FROM t LEFT JOIN due d ON true
LEFT JOIN {schema}.job j ON d.verdict IS NULL AND j.tenant = %(tenant)s AND j.id = %(id)s;

-- name: claim_triggers
-- One row per trigger asked for. A NULL fence: not ours (taken, or the job runs), with the present row to heal the
-- mirror by. The schedule is not touched: neither next_run_at nor last_fire_at moves.
WITH t AS (SELECT coalesce(%(now)s::timestamptz, now()) AS now),
due AS MATERIALIZED (
  SELECT p.*, d.fence, t.now
  FROM t CROSS JOIN (
    SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(hashes)b::bytea[]),
                         (SELECT %(triggers)b::timestamptz[]))
      WITH ORDINALITY AS p(tenant, id, spec_hash, trigger_at, ord)
    ORDER BY p.tenant COLLATE "C", p.id COLLATE "C") p
  LEFT JOIN LATERAL (
    SELECT l.fence + 1 AS fence
    FROM {schema}.job j JOIN {schema}.job_lock l ON l.tenant = j.tenant AND l.id = j.id
    WHERE j.tenant = p.tenant AND j.id = p.id AND j.trigger_at = p.trigger_at AND j.spec_hash = p.spec_hash
      AND l.owner IS NULL
    FOR NO KEY UPDATE OF j, l SKIP LOCKED) d ON true),
cleared AS (
  UPDATE {schema}.job j SET trigger_at = NULL
  FROM due d WHERE d.fence IS NOT NULL AND j.tenant = d.tenant AND j.id = d.id),
lease AS (
  UPDATE {schema}.job_lock l SET owner = %(owner)s, fence = d.fence, fire_at = d.trigger_at, triggered = true,
    created_at = d.now, expires_at = d.now + %(lease)s::interval, starts = 1, description = %(label)s
  FROM due d WHERE d.fence IS NOT NULL AND l.tenant = d.tenant AND l.id = d.id)
SELECT d.ord, d.fence, d.now, j.trigger_at, j.spec_hash
FROM due d
LEFT JOIN LATERAL (
  SELECT j.trigger_at, j.spec_hash FROM {schema}.job j
  WHERE d.fence IS NULL AND j.tenant = d.tenant AND j.id = d.id) j ON true;

-- name: renew
-- Prolong leases. No row back for one: it was lost; somebody else may be running that fire.
WITH mine AS MATERIALIZED (
  SELECT p.*, coalesce(%(now)s::timestamptz, now()) AS now
  FROM (SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(fences)b::int8[]))
          WITH ORDINALITY AS p(tenant, id, fence, ord)
        ORDER BY p.tenant COLLATE "C", p.id COLLATE "C") p
  CROSS JOIN LATERAL (
    SELECT FROM {schema}.job_lock l
    WHERE l.tenant = p.tenant AND l.id = p.id AND l.owner = %(owner)s AND l.fence = p.fence
    FOR NO KEY UPDATE) l),
renewed AS (
  UPDATE {schema}.job_lock l SET expires_at = m.now + %(lease)s::interval
  FROM mine m WHERE l.tenant = m.tenant AND l.id = m.id)
SELECT ord FROM mine;

-- name: finish
-- End runs: free the lease and write the ledger row. accepted is false when the lease was lost, unless this very
-- finish was committed before and only its answer was lost (recorded).
WITH mine AS MATERIALIZED (
  SELECT p.*, l.fire_at, l.starts, l.missed_from, l.missed_count, l.attempts,
    CASE WHEN l.triggered THEN 'trigger' ELSE 'fire' END AS kind
  FROM (SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(fences)b::int8[]),
                             (SELECT %(fires)b::timestamptz[]), (SELECT %(outcomes)b::text[]),
                             (SELECT %(errors)b::text[]), (SELECT %(started)b::timestamptz[]),
                             (SELECT %(finished)b::timestamptz[]))
          WITH ORDINALITY AS p(tenant, id, fence, run_fire_at, outcome, error, started_at, finished_at, ord)
        ORDER BY p.tenant COLLATE "C", p.id COLLATE "C") p
  LEFT JOIN LATERAL (
    SELECT l.* FROM {schema}.job_lock l
    WHERE l.tenant = p.tenant AND l.id = p.id AND l.owner = %(owner)s AND l.fence = p.fence
    FOR NO KEY UPDATE) l ON true),
freed AS (
  UPDATE {schema}.job_lock l SET owner = NULL, fire_at = NULL, created_at = NULL, expires_at = NULL, starts = 0,
    description = NULL, missed_from = NULL, missed_count = 0, attempts = '[]', triggered = false
  FROM mine m WHERE m.fire_at IS NOT NULL AND l.tenant = m.tenant AND l.id = m.id),
ledger AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, fence, attempt, holder, started_at,
    finished_at, missed_from, missed_count, error, attempts)
  SELECT fire_at, tenant, id, kind, outcome, fence, starts, %(label)s, started_at, finished_at, missed_from,
    missed_count, error, nullif(attempts, '[]')
  FROM mine WHERE fire_at IS NOT NULL ON CONFLICT DO NOTHING)
SELECT m.ord, m.fire_at IS NOT NULL AS accepted, h.fence IS NOT NULL AS recorded
FROM mine m
LEFT JOIN LATERAL (
  SELECT h.fence FROM {schema}.job_history h
  WHERE m.fire_at IS NULL AND h.tenant = m.tenant AND h.job_id = m.id AND h.at = m.run_fire_at AND h.kind <> 'audit'
    AND h.fence = m.fence AND h.outcome = m.outcome) h ON true;

-- name: release
-- Hand fires back that this process will not end: they are re-driven at once. unstarted ones count no start.
WITH mine AS MATERIALIZED (
  SELECT p.* FROM (
    SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(fences)b::int8[]),
                         (SELECT %(started)b::bool[]))
      AS p(tenant, id, fence, started)
    ORDER BY p.tenant COLLATE "C", p.id COLLATE "C") p
  CROSS JOIN LATERAL (
    SELECT FROM {schema}.job_lock l
    WHERE l.tenant = p.tenant AND l.id = p.id AND l.owner = %(owner)s AND l.fence = p.fence
    FOR NO KEY UPDATE) l)
UPDATE {schema}.job_lock l
SET expires_at = 'epoch', starts = CASE WHEN m.started THEN l.starts ELSE l.starts - 1 END
FROM mine m WHERE l.tenant = m.tenant AND l.id = m.id;

-- name: expired
-- Leases that ran out, in any order: those that nobody here can help must not hide the others. No row: nobody died.
SELECT l.tenant, l.id, l.fence, l.starts, j.delivery
FROM {schema}.job_lock l
LEFT JOIN {schema}.job j ON j.tenant = l.tenant AND j.id = l.id
WHERE l.owner IS NOT NULL AND l.expires_at < coalesce(%(now)s::timestamptz, now())
  AND (%(tenants)b::text[] IS NULL OR l.tenant = ANY(%(tenants)b::text[]))
ORDER BY random() LIMIT 1000;

-- name: redrive
-- Take expired leases to run *their* fires again. No row back: another instance was faster, or it was renewed.
WITH lost AS MATERIALIZED (
  SELECT p.*, l.fire_at, l.starts + 1 AS starts, coalesce(%(now)s::timestamptz, now()) AS now
  FROM (SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(fences)b::int8[]))
          WITH ORDINALITY AS p(tenant, id, fence, ord)
        ORDER BY p.tenant COLLATE "C", p.id COLLATE "C") p
  CROSS JOIN LATERAL (
    SELECT l.fire_at, l.starts FROM {schema}.job_lock l
    WHERE l.tenant = p.tenant AND l.id = p.id AND l.fence = p.fence AND l.owner IS NOT NULL
      AND l.expires_at < coalesce(%(now)s::timestamptz, now())
    FOR NO KEY UPDATE SKIP LOCKED) l),
taken AS (
  UPDATE {schema}.job_lock l SET owner = %(owner)s, fence = l.fence + 1, created_at = x.now,
    expires_at = x.now + %(lease)s::interval, starts = x.starts, description = %(label)s,
    attempts = CASE WHEN jsonb_array_length(l.attempts) >= l.starts THEN l.attempts  -- handed back before it started
      ELSE l.attempts || jsonb_build_object('attempt', l.starts, 'fence', l.fence, 'outcome', 'lost',
                                            'holder', l.description, 'started_at', l.created_at) END
  FROM lost x WHERE l.tenant = x.tenant AND l.id = x.id)
SELECT ord, fire_at, fence + 1, starts, now FROM lost;

-- name: bury
-- Record fires that may not start again as crashed, and free their jobs. No row back: another instance did.
WITH dead AS MATERIALIZED (
  SELECT p.tenant, p.id, p.reason, l.fence, l.fire_at, l.starts, l.description, l.created_at, l.missed_from,
    l.missed_count, l.attempts, CASE WHEN l.triggered THEN 'trigger' ELSE 'fire' END AS kind,
    coalesce(%(now)s::timestamptz, now()) AS now
  FROM (SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::text[]), (SELECT %(fences)b::int8[]),
                             (SELECT %(reasons)b::text[]))
          AS p(tenant, id, fence, reason)
        ORDER BY p.tenant COLLATE "C", p.id COLLATE "C") p
  CROSS JOIN LATERAL (
    SELECT l.* FROM {schema}.job_lock l
    WHERE l.tenant = p.tenant AND l.id = p.id AND l.fence = p.fence AND l.owner IS NOT NULL
      AND l.expires_at < coalesce(%(now)s::timestamptz, now())
    FOR NO KEY UPDATE SKIP LOCKED) l),
freed AS (
  UPDATE {schema}.job_lock l SET fence = l.fence + 1, owner = NULL, fire_at = NULL, created_at = NULL,
    expires_at = NULL, starts = 0, description = NULL, missed_from = NULL, missed_count = 0, attempts = '[]',
    triggered = false
  FROM dead d WHERE l.tenant = d.tenant AND l.id = d.id),
ledger AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, reason, fence, attempt, holder, started_at,
    finished_at, missed_from, missed_count, attempts)
  SELECT fire_at, tenant, id, kind, 'crashed', reason, fence, starts, description, created_at, now, missed_from,
    missed_count, nullif(attempts, '[]')
  FROM dead ON CONFLICT DO NOTHING)
SELECT tenant, id, fire_at FROM dead;
