-- name: newest
-- The newest ledger rows of a tenant, or those before one of them. No row: nothing has happened.
SELECT h.at, h.tenant, h.job_id, h.kind, h.outcome, h.reason, h.attempt, h.fence, h.holder, h.started_at,
       h.finished_at, h.missed_from, h.missed_count, h.error, h.attempts, h.type, h.queue, h.priority, h.run_at,
       h.created_at, h.json, h.job
FROM {schema}.job_history h
WHERE h.tenant = %(tenant)s AND h.at <= coalesce(%(before)s::timestamptz, 'infinity')
  AND (%(before)s::timestamptz IS NULL
       OR (h.at, h.job_id, h.kind) < (%(before)s::timestamptz, %(before_id)s::text, %(before_kind)s::text))
ORDER BY h.at DESC, h.job_id DESC, h.kind DESC LIMIT %(limit)s;

-- name: newest_of_job
-- The newest ledger rows of one job: a statement of its own, for a plan of its own. No row: nothing has happened.
SELECT h.at, h.tenant, h.job_id, h.kind, h.outcome, h.reason, h.attempt, h.fence, h.holder, h.started_at,
       h.finished_at, h.missed_from, h.missed_count, h.error, h.attempts, h.type, h.queue, h.priority, h.run_at,
       h.created_at, h.json, h.job
FROM {schema}.job_history h
WHERE h.tenant = %(tenant)s AND h.job_id = %(job_id)s AND h.at <= coalesce(%(before)s::timestamptz, 'infinity')
  AND (%(before)s::timestamptz IS NULL
       OR (h.at, h.job_id, h.kind) < (%(before)s::timestamptz, %(before_id)s::text, %(before_kind)s::text))
ORDER BY h.tenant, h.job_id, h.at DESC, h.kind DESC LIMIT %(limit)s;

-- name: tend
-- Make the ledger's partitions ahead and drop those that are too old. Always one row: how many of each.
SELECT made, dropped FROM {schema}.tend_history(coalesce(%(now)s::timestamptz, now()), %(ahead)s::int4, %(keep)s::interval);
