-- name: names
-- The queues that were ever fed, that jobs wait to be fed to, or that have dead letters. No row: there is none.
WITH RECURSIVE ready AS (
  (SELECT r.queue FROM {schema}.job_ready r ORDER BY r.queue LIMIT 1)
  UNION ALL
  SELECT (SELECT r.queue FROM {schema}.job_ready r WHERE r.queue > g.queue ORDER BY r.queue LIMIT 1)
  FROM ready g WHERE g.queue IS NOT NULL),
dead AS (
  (SELECT l.queue FROM {schema}.job_letter l ORDER BY l.queue LIMIT 1)
  UNION ALL
  SELECT (SELECT l.queue FROM {schema}.job_letter l WHERE l.queue > d.queue ORDER BY l.queue LIMIT 1)
  FROM dead d WHERE d.queue IS NOT NULL)
SELECT queue FROM {schema}.job_epoch UNION SELECT queue FROM ready WHERE queue IS NOT NULL
UNION SELECT queue FROM dead WHERE queue IS NOT NULL ORDER BY queue;

-- name: stats
-- What Postgres knows of queues: since when it is paused, how many wait to be fed and since when the oldest that is due,
-- how many wait for others, dead letters; each is counted up to `most`, NULL for all. Always one row for each.
WITH RECURSIVE waiting AS (
  SELECT f.queue, f.priority, f.tenant, f.run_at, 1 AS turn
  FROM unnest(%(queues)s::text[]) AS n(queue) CROSS JOIN LATERAL (
    SELECT r.queue, r.priority, r.tenant, r.run_at FROM {schema}.job_ready r WHERE r.queue = n.queue
    ORDER BY r.queue, r.priority, r.tenant, r.run_at, r.seq LIMIT 1) f
  UNION ALL
  SELECT n.queue, n.priority, n.tenant, n.run_at, w.turn + 1 FROM waiting w CROSS JOIN LATERAL (
    SELECT r.queue, r.priority, r.tenant, r.run_at FROM {schema}.job_ready r
    WHERE r.queue = w.queue AND (r.priority, r.tenant) > (w.priority, w.tenant)
    ORDER BY r.queue, r.priority, r.tenant, r.run_at, r.seq LIMIT 1) n
  WHERE w.turn < coalesce(%(most)s::int8, 9223372036854775807)),
oldest AS (
  SELECT w.queue, min(w.run_at) AS run_at FROM waiting w
  WHERE w.run_at <= coalesce(%(now)s::timestamptz, now()) GROUP BY w.queue)
SELECT n.queue, e.paused_at, r.ready, o.run_at, p.pending, l.dead
FROM unnest(%(queues)s::text[]) AS n(queue)
LEFT JOIN oldest o ON o.queue = n.queue
LEFT JOIN LATERAL (SELECT e.paused_at FROM {schema}.job_epoch e WHERE e.queue = n.queue LIMIT 1) e ON true
CROSS JOIN LATERAL (SELECT count(*) AS ready FROM (
  SELECT FROM {schema}.job_ready r WHERE r.queue = n.queue
  ORDER BY r.queue, r.priority, r.tenant, r.run_at, r.seq LIMIT %(most)s::int8) r) r
CROSS JOIN LATERAL (SELECT count(*) AS pending FROM (
  SELECT FROM {schema}.job_queue q WHERE q.queue = n.queue AND q.open_dependencies > 0
  ORDER BY q.queue, q.seq LIMIT %(most)s::int8) q) p
CROSS JOIN LATERAL (SELECT count(*) AS dead FROM (
  SELECT FROM {schema}.job_letter l WHERE l.queue = n.queue
  ORDER BY l.queue, l.at LIMIT %(most)s::int8) l) l;

-- name: pause
-- Pause a queue, after those who feed it at the moment. Always one row: since when.
INSERT INTO {schema}.job_epoch AS e (queue, epoch, paused_at)
VALUES (%(queue)s, 0, coalesce(%(now)s::timestamptz, now()))
ON CONFLICT (queue) DO UPDATE SET paused_at = coalesce(e.paused_at, excluded.paused_at) RETURNING paused_at;

-- name: resume
-- Let a queue go on. One row: whether it was paused. No row: the queue was never fed.
UPDATE {schema}.job_epoch e SET paused_at = NULL
FROM (SELECT queue, paused_at FROM {schema}.job_epoch WHERE queue = %(queue)s FOR UPDATE) was
WHERE e.queue = was.queue RETURNING was.paused_at IS NOT NULL;

-- name: paused
-- Whether a queue is paused, which nobody changes until this transaction ends. No row: the queue was never fed.
SELECT paused_at IS NOT NULL FROM {schema}.job_epoch WHERE queue = %(queue)s FOR SHARE;

-- name: pauses
-- The queues that were ever fed, or paused, and whether they are. No row: there is none.
SELECT queue, paused_at IS NOT NULL FROM {schema}.job_epoch ORDER BY queue;

-- name: letters
-- Dead letters of a queue, newest first, or those of some ids. No row: there is none, or no more.
SELECT l.tenant, l.id::text, l.at, h.type, h.priority, h.attempt, h.created_at, h.outcome, h.reason, h.error
FROM (
  SELECT * FROM {schema}.job_letter l
  WHERE l.queue = %(queue)s AND (%(ids)s::text[] IS NULL OR l.id::text = ANY(%(ids)s::text[]))
  ORDER BY l.at DESC, l.tenant DESC, l.id DESC OFFSET %(skip)s LIMIT %(limit)s) l
LEFT JOIN LATERAL (
  SELECT * FROM {schema}.job_history h
  WHERE h.tenant = l.tenant AND h.job_id = l.id::text AND h.at = l.at AND h.kind = 'job' LIMIT 1) h ON true
ORDER BY l.at DESC, l.tenant DESC, l.id DESC;

-- name: take_letter
-- Take a dead letter, waiting for whoever has it. No row: there is none any more.
DELETE FROM {schema}.job_letter WHERE tenant = %(tenant)s AND id = %(id)s RETURNING id;

-- name: purge_letters
-- Drop some dead letters of a queue, oldest first. Always one row: how many.
WITH old AS MATERIALIZED (
  SELECT l.tenant, l.id FROM {schema}.job_letter l WHERE l.queue = %(queue)s
  ORDER BY l.at, l.tenant, l.id LIMIT %(limit)s FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM {schema}.job_letter l USING old o WHERE l.tenant = o.tenant AND l.id = o.id RETURNING 1)
SELECT count(*) FROM gone;

-- name: ended
-- How many jobs ended within a span, by queue and state; one without a queue says since when, and what time it is.
WITH RECURSIVE t AS (SELECT coalesce(%(now)s::timestamptz, now()) AS now, %(span)s::interval AS span),
tenants AS (
  (SELECT h.tenant FROM {schema}.job_history h ORDER BY h.tenant LIMIT 1)
  UNION ALL
  SELECT (SELECT h.tenant FROM {schema}.job_history h WHERE h.tenant > n.tenant ORDER BY h.tenant LIMIT 1)
  FROM tenants n WHERE n.tenant IS NOT NULL)
SELECT NULL::text AS queue, NULL::text AS outcome, 0::int8 AS count, t.now - t.span AS since, t.now FROM t
UNION ALL
SELECT h.queue, h.outcome, count(*), NULL, NULL FROM t CROSS JOIN tenants n CROSS JOIN LATERAL (
  SELECT h.queue, h.outcome FROM {schema}.job_history h
  WHERE h.tenant = n.tenant AND h.at > t.now - t.span AND h.at <= t.now AND h.kind = 'job') h
GROUP BY h.queue, h.outcome;
