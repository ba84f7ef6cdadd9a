-- name: newest
-- The newest ledger rows of a tenant, or of one of its jobs. No row: nothing has happened.
SELECT h.at, h.tenant, h.job_id, h.kind, h.outcome, h.reason, h.attempt, h.fence, h.holder, h.started_at,
       h.finished_at, h.missed_from, h.missed_count, h.error, h.attempts
FROM {schema}.job_history h
WHERE h.tenant = %(tenant)s AND (%(job_id)s::text IS NULL OR h.job_id = %(job_id)s)
ORDER BY h.at DESC, h.kind LIMIT %(limit)s;
