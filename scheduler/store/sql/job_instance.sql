-- name: beat
-- This instance is alive; NULL arrays: what it can run has not changed. Rows of the long dead go. Always one row:
-- whether it is new, and then the arrays have to be sent; how many others live; whether its id is the lowest of them.
WITH t AS (SELECT coalesce(%(now)s::timestamptz, now()) AS now),
gone AS (
  DELETE FROM {schema}.job_instance i WHERE i.id IN (
    SELECT o.id FROM {schema}.job_instance o, t WHERE o.expires_at < t.now - interval '1 day'
    FOR UPDATE OF o SKIP LOCKED))
INSERT INTO {schema}.job_instance AS i (id, label, started_at, seen_at, expires_at, skew, tenants, ids, mirrors, app,
  version)
SELECT %(id)s, %(label)s, t.now, t.now, t.now + %(lives)s::interval, %(skew)s,
       coalesce(%(tenants)b::text[], ARRAY[]::text[]), coalesce(%(ids)b::text[], ARRAY[]::text[]),
       %(mirrors)b::text[], %(app)s::text, %(version)s::int8
FROM t
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, expires_at = excluded.expires_at, skew = excluded.skew,
  tenants = coalesce(%(tenants)b::text[], i.tenants), ids = coalesce(%(ids)b::text[], i.ids),
  mirrors = excluded.mirrors
RETURNING i.started_at = i.seen_at, (
  SELECT count(*)::int4 FROM {schema}.job_instance o WHERE o.id <> i.id AND o.expires_at >= i.seen_at),
  NOT EXISTS (SELECT FROM {schema}.job_instance o WHERE o.id < i.id AND o.expires_at >= i.seen_at);

-- name: leave
-- This instance ends. No row back, ever.
DELETE FROM {schema}.job_instance WHERE id = %(id)s;

-- name: newer
-- The instances of higher versions of an app, also the dead of the last day. No row: there are none.
SELECT i.id, i.seen_at, i.expires_at - i.seen_at, i.expires_at < coalesce(%(now)s::timestamptz, now())
FROM {schema}.job_instance i
WHERE i.app IS NOT DISTINCT FROM %(app)s::text AND i.version > coalesce(%(version)s::int8, -1);

-- name: live
-- The live instances that can run a job. No row: nobody can.
SELECT i.label FROM {schema}.job_instance i
WHERE i.expires_at >= coalesce(%(now)s::timestamptz, now()) AND EXISTS (
  SELECT FROM unnest(i.tenants, i.ids) AS r(tenant, id) WHERE r.tenant = %(tenant)s AND r.id = %(job_id)s)
ORDER BY i.label;

-- name: page
-- Instances by id, from the one after `after` on, also the dead of the last day. No row: that was all.
SELECT i.id, i.label, i.expires_at >= coalesce(%(now)s::timestamptz, now()), i.started_at, i.seen_at, i.expires_at,
       i.skew, cardinality(i.ids)
FROM {schema}.job_instance i WHERE i.id > %(after)s::uuid ORDER BY i.id LIMIT %(limit)s;

-- name: stranded
-- Jobs with fires to come, or a trigger, that no live instance can run. No row: all is well.
SELECT j.tenant, j.id FROM {schema}.job j
WHERE (%(tenants)b::text[] IS NULL OR j.tenant = ANY(%(tenants)b::text[]))
  AND ((j.paused_at IS NULL AND j.next_run_at IS NOT NULL) OR j.trigger_at IS NOT NULL)
  AND (j.tenant, j.id) NOT IN (
    SELECT r.tenant, r.id FROM {schema}.job_instance i, unnest(i.tenants, i.ids) AS r(tenant, id)
    WHERE i.expires_at >= coalesce(%(now)s::timestamptz, now()))
ORDER BY j.tenant, j.id LIMIT 1000;

-- name: unmirrored
-- Due jobs, and triggers, of tenants that no live instance mirrors and that are not paused. No row: all is well.
SELECT j.tenant, j.id FROM {schema}.job j
WHERE ((j.paused_at IS NULL AND j.next_run_at <= coalesce(%(now)s::timestamptz, now())) OR j.trigger_at IS NOT NULL)
  AND NOT EXISTS (
    SELECT FROM {schema}.job_instance i
    WHERE i.mirrors IS NULL AND i.expires_at >= coalesce(%(now)s::timestamptz, now()))
  AND j.tenant NOT IN (
    SELECT m.tenant FROM {schema}.job_instance i, unnest(i.mirrors) AS m(tenant)
    WHERE i.expires_at >= coalesce(%(now)s::timestamptz, now()) AND m.tenant IS NOT NULL)
  AND NOT EXISTS (SELECT FROM {schema}.job_tenant n WHERE n.tenant = j.tenant AND n.paused_at IS NOT NULL)
ORDER BY j.tenant, j.id LIMIT 1000;
