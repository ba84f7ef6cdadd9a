-- name: bound_statements
-- Behind the client's deadline stands the server's, for this transaction.
SELECT set_config('statement_timeout', %(milliseconds)s, true);

-- name: generic_plans
-- One plan for every batch size, kept for the session: made while the tables were empty it must not scan them when
-- they are large, so each statement probes by key. Direct connections only.
SELECT set_config(name, value, false)
FROM (VALUES ('plan_cache_mode', 'force_generic_plan'), ('enable_seqscan', 'off'), ('enable_hashjoin', 'off'),
             ('enable_mergejoin', 'off')) AS s(name, value);

-- name: listen
-- Hear that something was registered or changed. The channel has the schema's name.
LISTEN {schema};

-- name: speak_utf8
-- An engine of the user's may speak another encoding; our texts need this one.
SET client_encoding = 'UTF8';
