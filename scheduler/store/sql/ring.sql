-- name: installation
-- Whose ledger this is, for the names of keys in Redis. Always one row.
SELECT id FROM {schema}.installation;

-- name: epochs
-- The queues that were ever fed, each with the mark that its Redis must have. No row: none was.
SELECT queue, epoch FROM {schema}.job_epoch ORDER BY queue;

-- name: open_queue
-- A queue that is fed for the first time. No row back, ever.
INSERT INTO {schema}.job_epoch (queue, epoch) VALUES (%(queue)s, 0) ON CONFLICT DO NOTHING;

-- name: seize_epoch
-- Declare that the Redis of a queue is lost, after those who feed it at the moment. No row: somebody else just did.
SELECT epoch FROM {schema}.job_epoch WHERE queue = %(queue)s AND epoch = %(epoch)s FOR UPDATE;

-- name: next_epoch
-- The mark of a queue whose jobs were all made to be fed again, newer than any that its Redis has. Always one row.
UPDATE {schema}.job_epoch SET epoch = greatest(epoch, %(known)s::int8) + 1 WHERE queue = %(queue)s RETURNING epoch;

-- name: feed_all_again
-- Let the live jobs of a queue that were fed be fed anew, some of them, in the order of their keys; a retry keeps its
-- time. One row for each that was looked at. No row: that was all.
WITH looked AS MATERIALIZED (
  SELECT q.tenant, q.id FROM {schema}.job_queue q WHERE (q.tenant, q.id) > (%(tenant)s::text, %(id)s::uuid)
  ORDER BY q.tenant, q.id LIMIT %(limit)s),
-- None that waits for others is held: who ends those holds them first, and would wait for us, and we for it.
held AS MATERIALIZED (
  SELECT q.* FROM looked l CROSS JOIN LATERAL (
    SELECT q.tenant, q.id, q.queue, q.priority, q.run_at, q.seq FROM {schema}.job_queue q
    WHERE q.tenant = l.tenant AND q.id = l.id AND q.queue = %(queue)s AND q.open_dependencies = 0
    FOR NO KEY UPDATE) q),
lost AS MATERIALIZED (
  SELECT h.* FROM held h LEFT JOIN LATERAL (
    SELECT true AS waits FROM {schema}.job_ready r WHERE r.queue = h.queue AND r.priority = h.priority
      AND r.tenant = h.tenant AND r.run_at = h.run_at AND r.seq = h.seq LIMIT 1) r ON true  -- LIMIT: a probe each
  WHERE r.waits IS NULL),
fed AS (
  UPDATE {schema}.job_queue q SET feed = q.feed + 1, fed_again_at = coalesce(%(now)s::timestamptz, now()) FROM lost l WHERE q.tenant = l.tenant AND q.id = l.id),
ready AS (
  INSERT INTO {schema}.job_ready (queue, priority, tenant, run_at, seq, id)
  SELECT queue, priority, tenant, run_at, seq, id FROM lost ON CONFLICT DO NOTHING)
SELECT l.tenant, l.id, o.id IS NOT NULL FROM looked l LEFT JOIN lost o ON o.tenant = l.tenant AND o.id = l.id
ORDER BY l.tenant, l.id;

-- name: feed_again
-- Let jobs be fed anew that Redis does not know, if nothing happened to them since they were read. No row for one:
-- something did.
WITH p AS MATERIALIZED (
  SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[]), (SELECT %(feeds)b::int4[]))
    AS p(tenant, id, feed) ORDER BY p.tenant COLLATE "C", p.id),
lost AS MATERIALIZED (
  SELECT q.* FROM p CROSS JOIN LATERAL (
    SELECT q.tenant, q.id, q.queue, q.priority, q.run_at, q.seq FROM {schema}.job_queue q
    WHERE q.tenant = p.tenant AND q.id = p.id AND q.feed = p.feed AND q.open_dependencies = 0 AND NOT EXISTS (
      SELECT FROM {schema}.job_ready r WHERE r.queue = q.queue AND r.priority = q.priority AND r.tenant = q.tenant
        AND r.run_at = q.run_at AND r.seq = q.seq)
    FOR NO KEY UPDATE SKIP LOCKED) q),
fed AS (
  UPDATE {schema}.job_queue q SET feed = q.feed + 1, fed_again_at = coalesce(%(now)s::timestamptz, now())
  FROM lost l WHERE q.tenant = l.tenant AND q.id = l.id)
INSERT INTO {schema}.job_ready (queue, priority, tenant, run_at, seq, id)
SELECT queue, priority, tenant, run_at, seq, id FROM lost ON CONFLICT DO NOTHING RETURNING tenant, id;

-- name: leave_to_feeders
-- Let feeders have jobs whose submitter could not push them, or does not know whether it did: the same feed, which a
-- queue that has it knows. No row for one: it has ended, or was made ready meanwhile.
WITH p AS MATERIALIZED (
  SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[])) AS p(tenant, id)
  ORDER BY p.tenant COLLATE "C", p.id),
unfed AS MATERIALIZED (
  SELECT q.* FROM p CROSS JOIN LATERAL (
    SELECT q.tenant, q.id, q.queue, q.priority, q.run_at, q.seq FROM {schema}.job_queue q
    WHERE q.tenant = p.tenant AND q.id = p.id AND q.feed = 1 AND q.attempt = 0 AND NOT q.retrying
    FOR NO KEY UPDATE) q)
INSERT INTO {schema}.job_ready (queue, priority, tenant, run_at, seq, id)
SELECT queue, priority, tenant, run_at, seq, id FROM unfed ON CONFLICT DO NOTHING RETURNING tenant, id;

-- name: retry
-- Settle attempts after which a job is tried again: of a feed that is not older than the present one, and an attempt
-- that is not settled. Rows that another transaction holds are passed over. No row back for one: look where it stands.
WITH p AS MATERIALIZED (
  SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[]), (SELECT %(feeds)b::int4[]),
                       (SELECT %(attempt_numbers)b::int4[]), (SELECT %(delays)b::int8[]), (SELECT %(records)b::text[]))
    AS p(tenant, id, feed, attempt, delay, record)
  ORDER BY p.tenant COLLATE "C", p.id),
mine AS MATERIALIZED (
  SELECT p.* FROM p CROSS JOIN LATERAL (
    SELECT q.id FROM {schema}.job_queue q
    WHERE q.tenant = p.tenant AND q.id = p.id AND q.feed <= p.feed AND q.attempt < p.attempt
      AND q.open_dependencies = 0
    FOR NO KEY UPDATE SKIP LOCKED) q)
UPDATE {schema}.job_queue q SET retrying = true, attempt = m.attempt, attempts = q.attempts || m.record::jsonb,
  run_at = coalesce(%(now)s::timestamptz, now()) + m.delay * interval '1 microsecond',
  updated_at = coalesce(%(now)s::timestamptz, now())
FROM mine m WHERE q.tenant = m.tenant AND q.id = m.id RETURNING q.tenant, q.id, q.run_at;

-- name: add_attempts
-- Add attempts that are settled after a later attempt of their job: to its row, or to the ledger if the job has ended. A
-- settler that stops between reading a result and settling it can be overtaken by another one. An attempt that is recorded
-- already is passed over, because a result can be settled twice. A row back: another transaction holds it, try again.
WITH p AS MATERIALIZED (
  SELECT p.tenant, p.id, p.record::jsonb AS record
  FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[]), (SELECT %(records)b::text[])) AS p(tenant, id, record)
  ORDER BY p.tenant COLLATE "C", p.id),
live AS MATERIALIZED (
  SELECT p.tenant, p.id, p.record, q.attempt, q.attempts FROM p CROSS JOIN LATERAL (
    SELECT q.attempt, q.attempts FROM {schema}.job_queue q WHERE q.tenant = p.tenant AND q.id = p.id
    LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) q),
ended AS MATERIALIZED (
  SELECT p.tenant, p.id, p.record, h.at, h.attempt, h.attempts FROM p CROSS JOIN LATERAL (
    SELECT h.at, h.attempt, h.attempts FROM {schema}.job_history h
    WHERE h.tenant = p.tenant AND h.job_id = p.id::text AND h.kind = 'job'
    LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) h),
merged AS MATERIALIZED (
  SELECT k.tenant, k.id, k.at, (
    SELECT jsonb_agg(e.one ORDER BY (e.one ->> 'attempt')::int4, e.one ->> 'started_at') FROM (
      SELECT DISTINCT ON (a.one -> 'attempt', a.one -> 'worker', coalesce(a.one -> 'sequence', a.one -> 'started_at')) a.one
      FROM jsonb_array_elements(coalesce(k.attempts, '[]') || (
        SELECT jsonb_agg(n.one) FROM jsonb_array_elements(k.record) AS n(one)
        WHERE (n.one ->> 'attempt')::int4 BETWEEN 1 AND k.below - 1)
      ) WITH ORDINALITY AS a(one, place)
      ORDER BY a.one -> 'attempt', a.one -> 'worker', coalesce(a.one -> 'sequence', a.one -> 'started_at'), a.place) e) AS attempts
  FROM (SELECT tenant, id, record, NULL::timestamptz AS at, attempt + 1 AS below, attempts FROM live
        UNION ALL SELECT tenant, id, record, at, attempt, attempts FROM ended) k),
to_queue AS (
  UPDATE {schema}.job_queue q SET attempts = m.attempts FROM merged m
  WHERE m.at IS NULL AND m.attempts IS NOT NULL AND q.tenant = m.tenant AND q.id = m.id),
to_ledger AS (
  UPDATE {schema}.job_history h SET attempts = m.attempts FROM merged m
  WHERE m.at IS NOT NULL AND m.attempts IS NOT NULL
    AND h.tenant = m.tenant AND h.job_id = m.id::text AND h.at = m.at AND h.kind = 'job')
SELECT p.tenant, p.id FROM p
WHERE NOT EXISTS (SELECT FROM merged m WHERE m.tenant = p.tenant AND m.id = p.id) AND (
  (SELECT true FROM {schema}.job_queue q WHERE q.tenant = p.tenant AND q.id = p.id LIMIT 1)  -- LIMIT: a probe each
  OR (SELECT true FROM {schema}.job_history h
      WHERE h.tenant = p.tenant AND h.job_id = p.id::text AND h.kind = 'job' LIMIT 1));

-- name: standing
-- Where jobs stand. No row for one: it has ended.
SELECT p.tenant, p.id, q.feed, q.attempt
FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[])) AS p(tenant, id)
CROSS JOIN LATERAL (
  SELECT q.feed, q.attempt FROM {schema}.job_queue q WHERE q.tenant = p.tenant AND q.id = p.id LIMIT 1) q;

-- name: asked
-- Some jobs that somebody wants to end and that were fed, in the order in which that was wanted. No row: that was all.
SELECT q.tenant, q.id, q.queue, q.cancel_reason, q.cancel_forced, q.cancel_requested_at FROM {schema}.job_queue q
WHERE q.cancel_requested_at IS NOT NULL
  AND (q.cancel_requested_at, q.tenant, q.id)
    > (coalesce(%(wanted_at)s::timestamptz, '-infinity'), %(tenant)s::text, %(id)s::uuid)
ORDER BY q.cancel_requested_at, q.tenant, q.id LIMIT %(limit)s;

-- name: hold_all
-- Keep jobs from being made ready, or changed, until this transaction ends. No row for one: another has it, or it has
-- ended.
SELECT p.tenant, p.id
FROM (SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[])) AS p(tenant, id)
      ORDER BY p.tenant COLLATE "C", p.id) p
CROSS JOIN LATERAL (
  SELECT q.id FROM {schema}.job_queue q WHERE q.tenant = p.tenant AND q.id = p.id FOR UPDATE SKIP LOCKED) q;

-- name: take_back_all
-- Take jobs that are held out of what waits to be fed, waiting for a feeder that has one. No row for one: it is fed, or
-- waits for others.
WITH p AS MATERIALIZED (
  SELECT q.queue, q.priority, q.tenant, q.run_at, q.seq
  FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[])) AS p(tenant, id)
  CROSS JOIN LATERAL (
    SELECT q.* FROM {schema}.job_queue q WHERE q.tenant = p.tenant AND q.id = p.id LIMIT 1) q)
DELETE FROM {schema}.job_ready r USING p
WHERE r.queue = p.queue AND r.priority = p.priority AND r.tenant = p.tenant AND r.run_at = p.run_at AND r.seq = p.seq
RETURNING r.tenant, r.id;

-- name: sweep
-- Look at some jobs, in the order of their keys: which of them were fed and have been silent for longer than they may,
-- or are young (silent between `young` and `old`), which are past their lifetime, which wait for others. One row for each
-- that was looked at. No row: that was all.
SELECT q.tenant, q.id, q.queue, q.feed, fed.fed AND q.heard_at
    + coalesce((q.policy ->> 'visibility_us')::int8, %(visibility)s::int8) * interval '1 microsecond' < t.now AS silent,
  fed.fed AND q.heard_at BETWEEN t.now - %(old)s::int8 * interval '1 microsecond'
    AND t.now - %(young)s::int8 * interval '1 microsecond' AS young,
  q.expires_at <= t.now AS expired,
  q.open_dependencies > 0 AS waits
FROM (SELECT coalesce(%(now)s::timestamptz, now()) AS now) t CROSS JOIN (
  SELECT q.tenant, q.id, q.queue, q.priority, q.run_at, q.seq, q.feed, q.open_dependencies, q.expires_at, q.policy,
    greatest(q.updated_at, q.run_at, q.fed_again_at) AS heard_at
  FROM {schema}.job_queue q WHERE (q.tenant, q.id) > (%(tenant)s::text, %(id)s::uuid)
  ORDER BY q.tenant, q.id LIMIT %(limit)s) q
LEFT JOIN LATERAL (
  SELECT true AS waits FROM {schema}.job_ready r WHERE r.queue = q.queue AND r.priority = q.priority
    AND r.tenant = q.tenant AND r.run_at = q.run_at AND r.seq = q.seq LIMIT 1) r ON true  -- LIMIT: a probe each
CROSS JOIN LATERAL (SELECT q.open_dependencies = 0 AND r.waits IS NULL AS fed) fed
ORDER BY q.tenant, q.id;

-- name: sweep_edges
-- Look at some edges, in the order of their keys: which of them lead to a job that has ended. One row for each that was
-- looked at. No row: that was all.
SELECT d.tenant, d.job_id, d.depends_on, q.lives IS NULL AS over
FROM (
  SELECT d.* FROM {schema}.job_dependency d
  WHERE (d.tenant, d.job_id, d.depends_on) > (%(tenant)s::text, %(id)s::uuid, %(depends_on)s::uuid)
  ORDER BY d.tenant, d.job_id, d.depends_on LIMIT %(limit)s) d
LEFT JOIN LATERAL (
  SELECT true AS lives FROM {schema}.job_queue q WHERE q.tenant = d.tenant AND q.id = d.depends_on LIMIT 1) q ON true
ORDER BY d.tenant, d.job_id, d.depends_on;
