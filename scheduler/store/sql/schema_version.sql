-- name: lock
-- Serialise the creation of the schema until the end of this transaction.
SELECT pg_advisory_xact_lock(hashtextextended(%(name)s, 7307));

-- name: installed
-- Whether there is a version to ask for.
SELECT EXISTS (
  SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = %(schema)s AND c.relname = 'schema_version');

-- name: newest
-- The version this database is at. NULL: nothing was ever applied.
SELECT max(version) FROM {schema}.schema_version;

-- name: create
-- The schema itself; harmless where it exists.
CREATE SCHEMA IF NOT EXISTS {schema};

-- name: enter
-- schema.sql names its tables without a schema. In this transaction they are created in this one.
SET LOCAL search_path = {schema};

-- name: record
-- Remember that a version was applied.
INSERT INTO {schema}.schema_version (version) VALUES (%(version)s);

-- name: drop
-- The schema and everything in it, for the end of a test; harmless where there is none.
DROP SCHEMA IF EXISTS {schema} CASCADE;
