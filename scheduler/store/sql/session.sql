-- name: begin
-- Behind the client's deadline stands the server's, for this transaction: milliseconds, here in the place of a schema.
-- It is also how long a lock is waited for: an error of its own would look like a row that Postgres does not want.
BEGIN; SET LOCAL statement_timeout = {schema}; SET LOCAL lock_timeout = 0;

-- name: listen
-- Hear what is said on a channel, here in the place of a schema: the schema's own, or that of its queues.
LISTEN {schema};

-- name: speak_utf8
-- An engine of the user's may speak another encoding; our texts need this one.
SET client_encoding = 'UTF8';

-- name: bound_locks
-- Rather give up than let others queue behind a lock that is waited for, for this transaction.
SELECT set_config('lock_timeout', %(milliseconds)s, true);
