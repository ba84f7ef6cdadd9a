-- Statements of a unit are planned anew each time, with the statistics of the moment: a queue is empty now and has a
-- million rows in a minute. `submit` alone, which reads no table but job_tenant, is prepared.

-- name: submit
-- New jobs, and those of them that wait for nobody into job_ready, in the order given; or `straight`: the caller pushes
-- them after its commit. That needs the mark that the caller knows of, a queue that is not paused, and no older job that
-- waits to be fed for the same tenant and priority. Nor may the tenant be paused. `refuse`: raise if a tenant is being
-- deleted. Always one row: now, and whether the caller pushes them.
WITH p AS MATERIALIZED (
  SELECT p.*, t.now, coalesce(p.given_run_at, t.now + p.delay, t.now) AS run_at
  FROM (SELECT coalesce(%(now)s::timestamptz, now()) AS now) t CROSS JOIN unnest(
      (SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[]), (SELECT %(types)b::text[]), (SELECT %(queues)b::text[]),
      (SELECT %(priorities)b::int2[]), (SELECT %(run_ats)b::timestamptz[]), (SELECT %(delays)b::interval[]),
      (SELECT %(lifetimes)b::interval[]), (SELECT %(opens)b::int4[]), (SELECT %(depths)b::int2[]),
      (SELECT %(jsons)b::bool[]), (SELECT %(payloads)b::bytea[]), (SELECT %(policies)b::text[]),
      (SELECT %(tags)b::text[]), (SELECT %(correlations)b::text[]), (SELECT %(callbacks)b::text[]),
      (SELECT %(retried)b::uuid[]), (SELECT %(previous)b::uuid[]), (SELECT %(traces)b::text[]),
      (SELECT %(keys)b::text[]))
    AS p(tenant, id, type, queue, priority, given_run_at, delay, lifetime, open_dependencies, depth,
      json, payload, policy, tags, correlation_id, callback_url, retried_from, previous_attempt_id, trace, key)),
stopped AS MATERIALIZED (
  SELECT t.tenant, t.deleting_at FROM (SELECT DISTINCT p.tenant FROM p) p CROSS JOIN LATERAL (
    SELECT n.tenant, n.deleting_at FROM {schema}.job_tenant n
    WHERE n.tenant = p.tenant AND n.paused_at IS NOT NULL FOR KEY SHARE) t),
straight AS MATERIALIZED (
  SELECT FROM {schema}.job_epoch e WHERE e.queue = %(straight)s::text AND e.epoch = %(epoch)s::int8
    AND e.paused_at IS NULL AND NOT EXISTS (SELECT FROM stopped) AND NOT EXISTS (
      SELECT FROM (SELECT DISTINCT p.queue, p.priority, p.tenant, p.now FROM p) p CROSS JOIN LATERAL (
        SELECT FROM {schema}.job_ready r WHERE r.queue = p.queue AND r.priority = p.priority AND r.tenant = p.tenant
          AND r.run_at <= p.now LIMIT 1) r)),
queued AS (
  INSERT INTO {schema}.job_queue (tenant, id, type, queue, priority, run_at, created_at, updated_at, expires_at,
    open_dependencies, depth, json, payload, policy, tags, correlation_id, callback_url, retried_from,
    previous_attempt_id, trace, idempotency_key)
  SELECT tenant, id, type, queue, priority, run_at, now, now, greatest(now, run_at) + lifetime, open_dependencies, depth,
    json, payload, policy::jsonb, tags::jsonb, correlation_id, callback_url, retried_from, previous_attempt_id, trace, key
  FROM p
  RETURNING queue, priority, tenant, run_at, seq, id, open_dependencies),
ready AS (
  INSERT INTO {schema}.job_ready (queue, priority, tenant, run_at, seq, id)
  SELECT queue, priority, tenant, run_at, seq, id FROM queued
  WHERE open_dependencies = 0 AND NOT EXISTS (SELECT FROM straight))
SELECT t.now, t.straight, CASE WHEN NOT t.straight THEN  -- let the feeders look; once for a transaction
  pg_notify(%(channel)s, '') END, CASE WHEN %(refuse)s::bool THEN (
  SELECT {schema}.refuse_tenant(n.tenant) FROM stopped n WHERE n.deleting_at IS NOT NULL LIMIT 1) END
FROM (SELECT coalesce(%(now)s::timestamptz, now()) AS now, EXISTS (SELECT FROM straight) AS straight) t;

-- name: submit_alike
-- New jobs that differ in nothing but id and payload and wait for nobody: what `submit` does, without an array for each
-- column. Always one row, as there.
WITH t AS (
  SELECT n.now, coalesce(%(run_at)s::timestamptz, n.now + %(delay)s::interval, n.now) AS run_at
  FROM (SELECT coalesce(%(now)s::timestamptz, now()) AS now) n),
stopped AS MATERIALIZED (
  SELECT n.tenant, n.deleting_at FROM {schema}.job_tenant n
  WHERE n.tenant = %(tenant)s AND n.paused_at IS NOT NULL FOR KEY SHARE),
straight AS MATERIALIZED (
  SELECT FROM {schema}.job_epoch e WHERE e.queue = %(straight)s::text AND e.epoch = %(epoch)s::int8
    AND e.paused_at IS NULL AND NOT EXISTS (SELECT FROM stopped) AND NOT EXISTS (
      SELECT FROM {schema}.job_ready r WHERE r.queue = %(queue)s AND r.priority = %(priority)s::int2
        AND r.tenant = %(tenant)s AND r.run_at <= (SELECT now FROM t))),
queued AS (
  INSERT INTO {schema}.job_queue (tenant, id, type, queue, priority, run_at, created_at, updated_at, expires_at, depth,
    json, payload, policy, tags, correlation_id, callback_url, retried_from, previous_attempt_id, trace, idempotency_key)
  SELECT %(tenant)s, p.id, %(type)s, %(queue)s, %(priority)s, t.run_at, t.now, t.now,
    greatest(t.now, t.run_at) + %(lifetime)s::interval,
    %(depth)s, %(json)s, p.payload, %(policy)s::jsonb, %(tags)s::jsonb, %(correlation_id)s, %(callback_url)s,
    %(retried_from)s::uuid, %(previous_attempt_id)s::uuid, %(trace)s, %(key)s
  FROM t CROSS JOIN unnest((SELECT %(ids)b::uuid[]), (SELECT %(payloads)b::bytea[])) AS p(id, payload)
  RETURNING queue, priority, tenant, run_at, seq, id),
ready AS (
  INSERT INTO {schema}.job_ready (queue, priority, tenant, run_at, seq, id)
  SELECT queue, priority, tenant, run_at, seq, id FROM queued WHERE NOT EXISTS (SELECT FROM straight))
SELECT t.now, s.straight, CASE WHEN NOT s.straight THEN pg_notify(%(channel)s, '') END,
  CASE WHEN %(refuse)s::bool THEN (
    SELECT {schema}.refuse_tenant(n.tenant) FROM stopped n WHERE n.deleting_at IS NOT NULL) END
FROM t CROSS JOIN (SELECT EXISTS (SELECT FROM straight) AS straight) s;

-- name: submit_one
-- One new job that waits for nobody: what `submit` does, without arrays. Always one row, as there.
WITH t AS (
  SELECT n.now, coalesce(%(run_at)s::timestamptz, n.now + %(delay)s::interval, n.now) AS run_at
  FROM (SELECT coalesce(%(now)s::timestamptz, now()) AS now) n),
stopped AS MATERIALIZED (
  SELECT n.tenant, n.deleting_at FROM {schema}.job_tenant n
  WHERE n.tenant = %(tenant)s AND n.paused_at IS NOT NULL FOR KEY SHARE),
straight AS MATERIALIZED (
  SELECT FROM {schema}.job_epoch e WHERE e.queue = %(straight)s::text AND e.epoch = %(epoch)s::int8
    AND e.paused_at IS NULL AND NOT EXISTS (SELECT FROM stopped) AND NOT EXISTS (
      SELECT FROM {schema}.job_ready r WHERE r.queue = %(queue)s AND r.priority = %(priority)s::int2
        AND r.tenant = %(tenant)s AND r.run_at <= (SELECT now FROM t))),
queued AS (
  INSERT INTO {schema}.job_queue (tenant, id, type, queue, priority, run_at, created_at, updated_at, expires_at, depth,
    json, payload, policy, tags, correlation_id, callback_url, retried_from, previous_attempt_id, trace, idempotency_key)
  SELECT %(tenant)s, %(id)s, %(type)s, %(queue)s, %(priority)s, run_at, now, now,
    greatest(now, run_at) + %(lifetime)s::interval,
    %(depth)s, %(json)s, %(payload)s, %(policy)s::jsonb, %(tags)s::jsonb, %(correlation_id)s, %(callback_url)s,
    %(retried_from)s::uuid, %(previous_attempt_id)s::uuid, %(trace)s, %(key)s FROM t
  RETURNING queue, priority, tenant, run_at, seq, id),
ready AS (
  INSERT INTO {schema}.job_ready (queue, priority, tenant, run_at, seq, id)
  SELECT queue, priority, tenant, run_at, seq, id FROM queued WHERE NOT EXISTS (SELECT FROM straight))
SELECT t.now, s.straight, CASE WHEN NOT s.straight THEN pg_notify(%(channel)s, '') END,
  CASE WHEN %(refuse)s::bool THEN (
    SELECT {schema}.refuse_tenant(n.tenant) FROM stopped n WHERE n.deleting_at IS NOT NULL) END
FROM t CROSS JOIN (SELECT EXISTS (SELECT FROM straight) AS straight) s;

-- name: depend
-- Edges of new jobs. No row back, ever.
INSERT INTO {schema}.job_dependency (tenant, job_id, depends_on, kind)
SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[]), (SELECT %(depends_on)b::uuid[]),
                     (SELECT %(kinds)b::text[]))
ON CONFLICT DO NOTHING;

-- name: claim_keys
-- Idempotency keys: ours, or whose they are within their window. Waits for whoever is submitting the same one; if that
-- transaction rolls back it is ours. One row for each.
INSERT INTO {schema}.job_key AS k (tenant, type, key, job_id, expires_at)
SELECT p.tenant, p.type, p.key, p.id, t.now + p.valid
FROM (SELECT coalesce(%(now)s::timestamptz, now()) AS now) t CROSS JOIN (
  SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(types)b::text[]), (SELECT %(keys)b::text[]),
                       (SELECT %(ids)b::uuid[]), (SELECT %(windows)b::interval[]))
    AS p(tenant, type, key, id, valid)
  ORDER BY p.tenant COLLATE "C", p.type COLLATE "C", p.key COLLATE "C") p
ON CONFLICT (tenant, type, key) DO UPDATE SET
  job_id = CASE WHEN k.expires_at <= coalesce(%(now)s::timestamptz, now()) THEN excluded.job_id ELSE k.job_id END,
  expires_at = CASE WHEN k.expires_at <= coalesce(%(now)s::timestamptz, now()) THEN excluded.expires_at
               ELSE k.expires_at END
RETURNING k.tenant, k.type, k.key, k.job_id;

-- name: alias
-- Store aliases of jobs: ids that handlers gave to jobs whose idempotency key was taken. No row back, ever.
INSERT INTO {schema}.job_alias (tenant, id, job_id, created_at)
SELECT p.tenant, p.id, p.job_id, coalesce(%(now)s::timestamptz, now())
FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[]), (SELECT %(owners)b::uuid[])) AS p(tenant, id, job_id)
ON CONFLICT DO NOTHING;

-- name: aliased
-- The jobs of which these ids are aliases. No row for one: it is no alias.
SELECT p.tenant, p.id, a.job_id
FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[])) AS p(tenant, id)
CROSS JOIN LATERAL (
  SELECT a.job_id FROM {schema}.job_alias a WHERE a.tenant = p.tenant AND a.id = p.id LIMIT 1) a;

-- name: hold_dependencies
-- Jobs that others are about to depend on, kept from ending until this transaction does. Waits for one that is being
-- settled. No row for one: it has ended, or never was.
SELECT p.tenant, p.id, q.priority, q.depth
FROM (SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[])) AS p(tenant, id)
      ORDER BY p.tenant COLLATE "C", p.id) p
CROSS JOIN LATERAL (
  SELECT q.priority, q.depth FROM {schema}.job_queue q
  WHERE q.tenant = p.tenant AND q.id = p.id FOR KEY SHARE) q;

-- name: ended
-- How jobs ended: a later statement than the one that found them gone. No row for one: there never was such a job.
SELECT p.tenant, p.id, h.outcome
FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[])) AS p(tenant, id)
CROSS JOIN LATERAL (
  SELECT h.outcome FROM {schema}.job_history h
  WHERE h.tenant = p.tenant AND h.job_id = p.id::text AND h.kind = 'job' LIMIT 1) h;

-- name: waiting
-- Who waits to be fed: each (queue, priority, tenant) after the one given, with its oldest run_at, one probe of the
-- index each. No row: that was all.
WITH RECURSIVE groups AS (
  (SELECT r.queue, r.priority, r.tenant, r.run_at, 1 AS turn FROM {schema}.job_ready r
   WHERE (r.queue, r.priority, r.tenant) > (%(queue)s::text, %(priority)s::int2, %(tenant)s::text)
   ORDER BY r.queue, r.priority, r.tenant, r.run_at, r.seq LIMIT 1)
  UNION ALL
  SELECT n.queue, n.priority, n.tenant, n.run_at, g.turn + 1 FROM groups g CROSS JOIN LATERAL (
    SELECT r.queue, r.priority, r.tenant, r.run_at FROM {schema}.job_ready r
    WHERE (r.queue, r.priority, r.tenant) > (g.queue, g.priority, g.tenant)
    ORDER BY r.queue, r.priority, r.tenant, r.run_at, r.seq LIMIT 1) n
  WHERE g.turn < %(limit)s::int4)
SELECT g.queue, g.priority, g.tenant, g.run_at, g.run_at <= coalesce(%(now)s::timestamptz, now()) AS due,
  coalesce(e.paused, n.paused) IS NOT NULL AS paused
FROM groups g LEFT JOIN LATERAL (
  SELECT true AS paused FROM {schema}.job_epoch e WHERE e.queue = g.queue AND e.paused_at IS NOT NULL LIMIT 1) e ON true
LEFT JOIN LATERAL (
  SELECT true AS paused FROM {schema}.job_tenant n WHERE n.tenant = g.tenant AND n.paused_at IS NOT NULL LIMIT 1) n ON true
ORDER BY g.turn;

-- name: feed
-- Take what is due out of job_ready, as many of each (priority, tenant) as is said, the older first; rows that another
-- feeder holds are passed over. The rows of job_queue are only read. By priority, then the tenants in turn. Each with
-- the mark of the queue, which is held first: nobody declares its Redis lost until this transaction ends, and a feed
-- that began before such a declaration is committed before it. No row: the queue was never fed. One without a tenant:
-- nothing is due, or the queue or the tenants are paused. A NULL type: the job has ended since.
-- A pause of a tenant updates the mark before it commits. So it waits for every feed that may not have seen it, and a
-- feed that waits for the pause finds another `tenant_pauses` in the mark than in its snapshot: it takes nothing.
-- By ctid, which is safe here: a row of job_ready is never updated, and we hold it.
WITH mark AS MATERIALIZED (
  SELECT epoch, paused_at, tenant_pauses FROM {schema}.job_epoch WHERE queue = %(queue)s FOR SHARE),
due AS MATERIALIZED (
  SELECT r.* FROM mark CROSS JOIN unnest((SELECT %(priorities)b::int2[]), (SELECT %(tenants)b::text[]),
      (SELECT %(counts)b::int4[]))
    AS s(priority, tenant, count)
  CROSS JOIN LATERAL (
    SELECT r.ctid AS place, r.tenant, r.id, r.priority, r.run_at, r.seq FROM {schema}.job_ready r
    WHERE r.queue = %(queue)s AND r.priority = s.priority AND r.tenant = s.tenant
      AND r.run_at <= coalesce(%(now)s::timestamptz, now())
    ORDER BY r.queue, r.priority, r.tenant, r.run_at, r.seq LIMIT s.count
    FOR UPDATE SKIP LOCKED) r
  WHERE mark.paused_at IS NULL
    AND mark.tenant_pauses = (SELECT e.tenant_pauses FROM {schema}.job_epoch e WHERE e.queue = %(queue)s)
    AND (SELECT true FROM {schema}.job_tenant n  -- LIMIT: a probe each
         WHERE n.tenant = s.tenant AND n.paused_at IS NOT NULL LIMIT 1) IS NULL),
taken AS (
  DELETE FROM {schema}.job_ready r WHERE r.ctid = ANY(ARRAY(SELECT place FROM due)))
SELECT m.epoch, d.tenant, d.id::text, d.priority, q.type, q.feed, q.attempt, q.json, q.payload, q.policy, q.tags,
       q.correlation_id, q.created_at, q.expires_at, (q.attempts -> -1) - 'error', q.trace, q.idempotency_key,
       q.previous_attempt_id
FROM mark m LEFT JOIN due d ON true
LEFT JOIN LATERAL (
  -- By seq: those of a tenant lie side by side in that index, their ids all over the other. LIMIT: a probe each.
  SELECT * FROM {schema}.job_queue q WHERE q.tenant = d.tenant AND q.seq = d.seq LIMIT 1) q ON true
ORDER BY d.priority, row_number() OVER (PARTITION BY d.priority, d.tenant ORDER BY d.run_at, d.seq), d.run_at, d.seq;

-- name: settle
-- End jobs: out of job_queue and job_ready, into the ledger, what is to be told of it into job_callback, and those that
-- failed of themselves into job_letter. A success ends whatever feed it is of, anything else only the present one (a
-- NULL feed: any). A result that Redis recorded after the lifetime of its job is late: the job is a dead letter, and
-- nothing that its handler returned is kept. When it is settled does not matter: a result that Redis recorded in time
-- counts, however long Postgres was away.
-- One row for each that ended: its position, and whether it was late. Rows that another transaction holds are passed
-- over: no row back, look where it stands.
WITH t AS (SELECT coalesce(%(now)s::timestamptz, now()) AS now),
p AS MATERIALIZED (
  SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[]), (SELECT %(states)b::text[]),
                       (SELECT %(feeds)b::int4[]), (SELECT %(attempt_numbers)b::int4[]), (SELECT %(reasons)b::text[]),
                       (SELECT %(errors)b::text[]), (SELECT %(results)b::bytea[]), (SELECT %(records)b::text[]),
                       (SELECT %(workers)b::text[]), (SELECT %(sequences)b::int8[]),
                       (SELECT %(started)b::timestamptz[]), (SELECT %(finished)b::timestamptz[]),
                       (SELECT %(recorded)b::timestamptz[]), (SELECT %(scheduled)b::timestamptz[]))
    WITH ORDINALITY AS p(tenant, id, state, feed, attempt, reason, error, result, record, worker, sequence, started_at,
      finished_at, recorded_at, scheduled_at, ord)
  ORDER BY p.tenant COLLATE "C", p.id),
held AS MATERIALIZED (
  SELECT p.tenant, p.id, p.feed, p.attempt, p.error, p.worker, p.sequence, p.started_at, p.finished_at, p.scheduled_at,
    p.ord, q.place,
    l.late,
    CASE WHEN l.late THEN 'dead_letter' ELSE p.state END AS state,
    CASE WHEN l.late THEN %(expired)s::text ELSE p.reason END AS reason,
    CASE WHEN NOT l.late THEN p.result END AS result,
    CASE WHEN NOT l.late OR p.state <> 'completed' THEN p.record END AS record
  FROM p CROSS JOIN t CROSS JOIN LATERAL (
    SELECT q.ctid AS place, q.expires_at FROM {schema}.job_queue q
    WHERE q.tenant = p.tenant AND q.id = p.id AND (p.state = 'completed' OR p.feed IS NULL OR q.feed <= p.feed)
    FOR UPDATE SKIP LOCKED) q
  -- Both clocks: ids of a stream never go back, so after a jump of Redis's clock they stay ahead of it for a while.
  CROSS JOIN LATERAL (
    SELECT coalesce(p.recorded_at > q.expires_at AND t.now > q.expires_at, false) AS late) l),
mine AS (  -- by its place, since we hold it; one that was changed after this statement began is not seen there
  DELETE FROM {schema}.job_queue q USING held h CROSS JOIN t WHERE q.ctid = h.place
  RETURNING h.*, t.now, q.json, q.type, q.queue, q.priority, q.run_at, q.created_at, q.policy, q.tags,
    q.correlation_id, q.callback_url, q.retried_from, q.idempotency_key, q.attempts, q.payload, q.seq, q.depth, q.retrying,
    q.feed AS known_feed, q.attempt AS known_attempt, q.cancel_reason),
unfed AS (  -- not for those that have just been fed; should that be undone, the row is dropped by the next feed
  DELETE FROM {schema}.job_ready r USING mine m
  WHERE (m.state <> 'completed' OR m.retrying OR m.feed IS DISTINCT FROM m.known_feed)
    AND r.queue = m.queue AND r.priority = m.priority AND r.tenant = m.tenant AND r.run_at = m.run_at
    AND r.seq = m.seq),
edges AS (  -- whoever was at depth 0 waited for nobody
  DELETE FROM {schema}.job_dependency d USING mine m
  WHERE m.depth > 0 AND d.tenant = m.tenant AND d.job_id = m.id),
ledger AS (
  INSERT INTO {schema}.job_history (at, tenant, job_id, kind, outcome, reason, fence, attempt, holder, started_at,
    finished_at, error, attempts, type, queue, priority, run_at, created_at, scheduled_at, json, job, payload, result)
  SELECT now, tenant, id::text, 'job', state,
    coalesce(reason, CASE WHEN state = 'cancelled' THEN cancel_reason END), nullif(sequence, 0),
    greatest(attempt, known_attempt), worker, started_at, coalesce(finished_at, now), error,
    nullif(CASE WHEN record IS NULL THEN attempts ELSE attempts || record::jsonb END, '[]'),
    type, queue, priority, run_at, created_at, CASE WHEN NOT retrying THEN scheduled_at END, json,
    CASE WHEN coalesce(policy, tags) IS NOT NULL OR coalesce(correlation_id, callback_url, idempotency_key) IS NOT NULL
      OR retried_from IS NOT NULL
    THEN jsonb_strip_nulls(jsonb_build_object('policy', policy, 'tags', tags, 'correlation_id', correlation_id,
      'callback_url', callback_url, 'retried_from', retried_from, 'idempotency_key', idempotency_key)) END,
    payload, result
  FROM mine),
told AS (
  INSERT INTO {schema}.job_callback (tenant, job_id, url, state, due_at, created_at)
  SELECT tenant, id, callback_url, state, now, now FROM mine WHERE callback_url IS NOT NULL
  ON CONFLICT DO NOTHING),
letters AS (
  INSERT INTO {schema}.job_letter (tenant, id, queue, at)
  SELECT tenant, id, queue, now FROM mine
  WHERE state = 'dead_letter' OR (state = 'failed' AND greatest(attempt, known_attempt) > 0)
  ON CONFLICT DO NOTHING)
SELECT m.ord, m.late FROM mine m;

-- name: any_dependents
-- Whether any job waits for another; a later statement than the one that ended some. Always one row.
SELECT EXISTS (SELECT FROM {schema}.job_dependency);

-- name: dependents
-- The edges that lead to jobs which have ended. No row: nobody waits for them.
SELECT d.tenant, d.job_id, d.depends_on, d.kind
FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[])) AS p(tenant, id)
CROSS JOIN LATERAL (
  SELECT d.* FROM {schema}.job_dependency d WHERE d.tenant = p.tenant AND d.depends_on = p.id) d;

-- name: hold_dependents
-- The jobs that wait for others, in the order of their keys: whoever releases one holds it, and does not wait for those
-- who are about to depend on it. No row: it has ended.
SELECT q.tenant, q.id FROM (
  SELECT DISTINCT p.tenant COLLATE "C" AS tenant, p.id
  FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[])) AS p(tenant, id)
  ORDER BY 1, 2) p
CROSS JOIN LATERAL (
  SELECT q.tenant, q.id FROM {schema}.job_queue q WHERE q.tenant = p.tenant AND q.id = p.id FOR NO KEY UPDATE) q;

-- name: release
-- Take edges away and let those go that wait for nobody any more: `after` by edge, `after_any` all of a job at once.
-- No row back for one: it still waits.
WITH p AS MATERIALIZED (
  SELECT * FROM unnest((SELECT %(tenants)b::text[]), (SELECT %(ids)b::uuid[]), (SELECT %(depends_on)b::uuid[]),
                       (SELECT %(kinds)b::text[]))
    AS p(tenant, job_id, depends_on, kind)),
each AS (
  DELETE FROM {schema}.job_dependency d USING p
  WHERE p.kind = 'after' AND d.tenant = p.tenant AND d.job_id = p.job_id AND d.depends_on = p.depends_on
    AND d.kind = 'after' RETURNING d.tenant, d.job_id),
alternatives AS (
  DELETE FROM {schema}.job_dependency d USING (SELECT DISTINCT tenant, job_id FROM p WHERE kind = 'after_any') p
  WHERE d.tenant = p.tenant AND d.job_id = p.job_id AND d.kind = 'after_any' RETURNING d.tenant, d.job_id),
closed AS (
  SELECT tenant, job_id, sum(n) AS n FROM (
    SELECT tenant, job_id, count(*) AS n FROM each GROUP BY 1, 2
    UNION ALL SELECT DISTINCT tenant, job_id, 1 FROM alternatives) x GROUP BY 1, 2),
freed AS (
  UPDATE {schema}.job_queue q SET open_dependencies = q.open_dependencies - c.n,
    updated_at = CASE WHEN q.open_dependencies = c.n THEN coalesce(%(now)s::timestamptz, now()) ELSE q.updated_at END
  FROM closed c WHERE q.tenant = c.tenant AND q.id = c.job_id
  RETURNING q.queue, q.priority, q.tenant, q.run_at, q.seq, q.id, q.open_dependencies)
INSERT INTO {schema}.job_ready (queue, priority, tenant, run_at, seq, id)
SELECT queue, priority, tenant, run_at, seq, id FROM freed WHERE open_dependencies = 0
ON CONFLICT DO NOTHING RETURNING tenant, id;

-- name: live
-- One live job, with whether it waits to be fed. No row: it has ended, or there is none.
SELECT q.id, q.type, q.queue, q.priority, q.run_at, q.created_at, q.updated_at, q.expires_at, q.attempt, q.retrying,
       q.open_dependencies, q.json, q.payload, q.policy, q.tags, q.correlation_id, q.callback_url, q.retried_from,
       q.idempotency_key, q.attempts, r.id IS NOT NULL AS waits, q.cancel_requested_at, coalesce(%(now)s::timestamptz, now()), n.paused_at,
       q.seq
FROM {schema}.job_queue q
LEFT JOIN LATERAL (
  SELECT r.id FROM {schema}.job_ready r WHERE r.queue = q.queue AND r.priority = q.priority AND r.tenant = q.tenant
    AND r.run_at = q.run_at AND r.seq = q.seq LIMIT 1) r ON true
LEFT JOIN LATERAL (SELECT n.paused_at FROM {schema}.job_tenant n WHERE n.tenant = q.tenant LIMIT 1) n ON true
WHERE q.tenant = %(tenant)s AND q.id = %(id)s;

-- name: over
-- One job that has ended. No row: there is none.
SELECT h.job_id, h.outcome, h.reason, h.fence, h.attempt, h.holder, h.started_at, h.finished_at, h.error, h.attempts,
       h.type, h.queue, h.priority, h.run_at, h.created_at, h.json, h.job, h.payload, h.result, h.scheduled_at, h.at
FROM {schema}.job_history h
WHERE h.tenant = %(tenant)s AND h.job_id = %(id)s AND h.kind = 'job' LIMIT 1;

-- name: find_live
-- Live jobs of a tenant that fit, newest first, among the next `most`, each with whether it fits and its place
-- among these; the last of them also if it does not fit: the look stopped there. No row: that was all.
SELECT q.id, q.type, q.queue, q.priority, q.run_at, q.created_at, q.updated_at, q.expires_at, q.attempt, q.retrying,
       q.open_dependencies, q.json, q.payload, q.policy, q.tags, q.correlation_id, q.callback_url, q.retried_from,
       q.idempotency_key, q.attempts, r.id IS NOT NULL AS waits, q.cancel_requested_at, coalesce(%(now)s::timestamptz, now()), n.paused_at,
       q.seq,
       q.fits, q.place
FROM (
  SELECT q.*, f.fits FROM (
    SELECT q.*, row_number() OVER (ORDER BY q.seq DESC) AS place FROM {schema}.job_queue q
    WHERE q.tenant = %(tenant)s AND q.seq < coalesce(%(before)s::int8, 9223372036854775807)
    ORDER BY q.seq DESC LIMIT %(most)s::int8) q
  CROSS JOIN LATERAL (SELECT
    (%(type)s::text IS NULL OR q.type = %(type)s) AND (%(queue)s::text IS NULL OR q.queue = %(queue)s)
    AND (%(tag)s::text IS NULL
         OR coalesce(q.tags ->> %(tag)s::text = coalesce(%(tag_value)s::text, q.tags ->> %(tag)s::text), false))
    AND (%(states)b::text[] IS NULL OR CASE
      WHEN q.open_dependencies > 0 THEN 'pending'
      WHEN q.retrying THEN CASE WHEN q.run_at > coalesce(%(now)s::timestamptz, now()) THEN 'retrying' ELSE 'scheduled' END
      WHEN NOT %(states)b::text[] && ARRAY['pending', 'delayed', 'scheduled'] THEN ''
      WHEN (SELECT r.id FROM {schema}.job_ready r WHERE r.queue = q.queue AND r.priority = q.priority
            AND r.tenant = q.tenant AND r.run_at = q.run_at AND r.seq = q.seq LIMIT 1) IS NULL THEN 'scheduled'
      WHEN q.run_at > coalesce(%(now)s::timestamptz, now()) THEN 'delayed'
      ELSE 'pending' END = ANY(%(states)b::text[])) AS fits OFFSET 0) f
  WHERE f.fits OR q.place = %(most)s::int8
  ORDER BY q.seq DESC LIMIT %(limit)s) q
LEFT JOIN LATERAL (
  SELECT r.id FROM {schema}.job_ready r WHERE r.queue = q.queue AND r.priority = q.priority AND r.tenant = q.tenant
    AND r.run_at = q.run_at AND r.seq = q.seq LIMIT 1) r ON true
LEFT JOIN LATERAL (SELECT n.paused_at FROM {schema}.job_tenant n WHERE n.tenant = q.tenant LIMIT 1) n ON true
ORDER BY q.seq DESC;

-- name: find_over
-- Jobs of a tenant that have ended and fit, newest end first, among the next `most` rows of its ledger, as above. No row: that was all.
SELECT h.job_id, h.outcome, h.reason, h.fence, h.attempt, h.holder, h.started_at, h.finished_at, h.error, h.attempts,
       h.type, h.queue, h.priority, h.run_at, h.created_at, h.json, h.job, h.payload, h.result, h.scheduled_at, h.at,
       f.fits, h.place
FROM (
  SELECT h.*, row_number() OVER (ORDER BY h.at DESC, h.job_id DESC, (h.kind = 'job') DESC) AS place
  FROM {schema}.job_history h
  WHERE h.tenant = %(tenant)s AND h.at <= coalesce(%(before)s::timestamptz, 'infinity')
    AND (%(before)s::timestamptz IS NULL OR (h.at, h.job_id) < (%(before)s::timestamptz, %(before_id)s::text))
  ORDER BY h.at DESC, h.job_id DESC, (h.kind = 'job') DESC LIMIT %(most)s::int8) h
CROSS JOIN LATERAL (SELECT
  h.kind = 'job'
  AND (%(type)s::text IS NULL OR h.type = %(type)s) AND (%(queue)s::text IS NULL OR h.queue = %(queue)s)
  AND (%(tag)s::text IS NULL OR coalesce(
    h.job -> 'tags' ->> %(tag)s::text = coalesce(%(tag_value)s::text, h.job -> 'tags' ->> %(tag)s::text), false))
  AND (%(states)b::text[] IS NULL OR h.outcome = ANY(%(states)b::text[])) AS fits OFFSET 0) f
WHERE f.fits OR h.place = %(most)s::int8
ORDER BY h.at DESC, h.job_id DESC, (h.kind = 'job') DESC LIMIT %(limit)s;

-- name: hold
-- Keep whatever says where a job's ready row is from changing, until this transaction ends: a statement before
-- take_back, so that what the one who held it before has made ready is seen there. No row: it has ended, or there is
-- none.
SELECT q.id FROM {schema}.job_queue q WHERE q.tenant = %(tenant)s AND q.id = %(id)s FOR NO KEY UPDATE;

-- name: take_back
-- Take a job that is held out of what waits to be fed, waiting for a feeder that has it. No row: it is fed, or waits
-- for others.
DELETE FROM {schema}.job_ready r USING {schema}.job_queue q
WHERE q.tenant = %(tenant)s AND q.id = %(id)s AND r.queue = q.queue AND r.priority = q.priority
  AND r.tenant = q.tenant AND r.run_at = q.run_at AND r.seq = q.seq
RETURNING r.id;

-- name: put_back
-- Let a job wait to be fed again. No row back, ever.
INSERT INTO {schema}.job_ready (queue, priority, tenant, run_at, seq, id)
SELECT q.queue, q.priority, q.tenant, q.run_at, q.seq, q.id FROM {schema}.job_queue q
WHERE q.tenant = %(tenant)s AND q.id = %(id)s ON CONFLICT DO NOTHING;

-- name: drop_key
-- Delete the idempotency key of a live job. No row back: it has none, or has ended.
DELETE FROM {schema}.job_key k USING {schema}.job_queue q
WHERE q.tenant = %(tenant)s AND q.id = %(id)s
  AND k.tenant = q.tenant AND k.type = q.type AND k.key = q.idempotency_key AND k.job_id = q.id
RETURNING k.key;

-- name: as_fed
-- A live job as `feed` returns it, without the mark. No row: it has ended, or there is none.
SELECT NULL, q.tenant, q.id::text, q.priority, q.type, q.feed, q.attempt, q.json, q.payload, q.policy, q.tags,
       q.correlation_id, q.created_at, q.expires_at, (q.attempts -> -1) - 'error', q.trace, q.idempotency_key,
       q.previous_attempt_id
FROM {schema}.job_queue q WHERE q.tenant = %(tenant)s AND q.id = %(id)s;

-- name: update
-- Update the columns of a live job that users can change. NULL keeps a value, an empty text clears it. The lifetime counts
-- from a new run_at. `next_feed`: 1 if it is to be fed with the next feed. `withdrawn`: it had been fed. No row back: the
-- job has ended, or there is none.
UPDATE {schema}.job_queue q SET
  priority = coalesce(%(priority)s::int2, q.priority),
  run_at = coalesce(t.run_at, q.run_at),
  expires_at = CASE WHEN t.run_at IS NULL THEN q.expires_at ELSE greatest(t.now, t.run_at) + %(lifetime)s::interval END,
  feed = q.feed + %(next_feed)s::int4,
  updated_at = CASE WHEN q.open_dependencies = 0 AND ((q.run_at > t.now) <> (coalesce(t.run_at, q.run_at) > t.now)
      OR (%(withdrawn)s AND NOT q.retrying))
    THEN t.now ELSE q.updated_at END,
  tags = CASE WHEN %(tags)s::text IS NULL THEN q.tags ELSE nullif(%(tags)s::jsonb, '{{}}') END,
  correlation_id = nullif(coalesce(%(correlation_id)s::text, q.correlation_id), ''),
  callback_url = nullif(coalesce(%(callback_url)s::text, q.callback_url), ''),
  idempotency_key = nullif(coalesce(%(idempotency_key)s::text, q.idempotency_key), '')
FROM (SELECT n.now, coalesce(%(run_at)s::timestamptz, n.now + %(delay)s::interval) AS run_at
      FROM (SELECT coalesce(%(now)s::timestamptz, now()) AS now) n) t
WHERE q.tenant = %(tenant)s AND q.id = %(id)s RETURNING q.id;

-- name: ask_to_cancel
-- Note that somebody wants a job to end that has been fed. No row back: it has ended, or there is none.
UPDATE {schema}.job_queue q SET cancel_requested_at = coalesce(%(now)s::timestamptz, now()),
  cancel_forced = q.cancel_forced OR %(force)s, cancel_reason = coalesce(%(reason)s::text, q.cancel_reason)
WHERE q.tenant = %(tenant)s AND q.id = %(id)s RETURNING q.id;
