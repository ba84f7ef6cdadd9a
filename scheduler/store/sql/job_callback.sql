-- name: claim
-- Take some callbacks that are due, the longest first, each until its lease has passed; with what the ledger says of the
-- end, if it still has it. Rows that another one claims are passed over. No row: nothing is due.
WITH t AS (SELECT coalesce(%(now)s::timestamptz, now()) AS now),
due AS MATERIALIZED (
  SELECT c.tenant, c.job_id FROM {schema}.job_callback c
  WHERE c.gave_up_at IS NULL AND c.due_at <= (SELECT now FROM t)
  ORDER BY c.due_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED),
mine AS (
  UPDATE {schema}.job_callback c SET attempt = c.attempt + 1, due_at = t.now + %(lease)s::interval
  FROM due d CROSS JOIN t WHERE c.tenant = d.tenant AND c.job_id = d.job_id
  RETURNING c.tenant, c.job_id, c.url, c.state, c.attempt, c.created_at)
SELECT m.tenant, m.job_id, m.url, m.state, m.attempt, m.created_at, h.type, h.queue, h.job, h.attempt, h.reason,
       h.error, h.result, CASE WHEN h.error IS NOT NULL THEN h.attempts -> -1 END
FROM mine m
LEFT JOIN LATERAL (
  SELECT h.type, h.queue, h.job, h.attempt, h.reason, h.error, h.result, h.attempts FROM {schema}.job_history h
  WHERE h.tenant = m.tenant AND h.job_id = m.job_id::text AND h.at = m.created_at AND h.kind = 'job' LIMIT 1) h ON true;

-- name: told
-- The receiver knows, whichever attempt told it. No row back: it was noted before.
DELETE FROM {schema}.job_callback c WHERE c.tenant = %(tenant)s AND c.job_id = %(job_id)s RETURNING c.job_id;

-- name: again
-- Let a callback be due later. No row back: another attempt was begun meanwhile, or has told it.
UPDATE {schema}.job_callback c
SET due_at = coalesce(%(now)s::timestamptz, now()) + %(delay)s::interval, error = %(error)s
WHERE c.tenant = %(tenant)s AND c.job_id = %(job_id)s AND c.attempt = %(attempt)s AND c.gave_up_at IS NULL
RETURNING c.job_id;

-- name: give_up
-- Let a callback rest, with its reason. No row back: another attempt was begun meanwhile, or has told it.
UPDATE {schema}.job_callback c SET gave_up_at = coalesce(%(now)s::timestamptz, now()), error = %(error)s
WHERE c.tenant = %(tenant)s AND c.job_id = %(job_id)s AND c.attempt = %(attempt)s AND c.gave_up_at IS NULL
RETURNING c.job_id;

-- name: waiting
-- Whether a callback is due. No row: none is.
SELECT c.job_id FROM {schema}.job_callback c
WHERE c.gave_up_at IS NULL AND c.due_at <= coalesce(%(now)s::timestamptz, now()) ORDER BY c.due_at LIMIT 1;

-- name: forget
-- Forget callbacks that were given up, a while after. No row back, ever.
DELETE FROM {schema}.job_callback c WHERE c.gave_up_at < coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval;
