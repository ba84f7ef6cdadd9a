-- The ledger has what every job has in columns of its own. Instances of the version before can end no job any more.

ALTER TABLE job_history
  ADD COLUMN type       text,
  ADD COLUMN queue      text COLLATE "C",
  ADD COLUMN priority   smallint,
  ADD COLUMN run_at     timestamptz,
  ADD COLUMN created_at timestamptz,
  ADD COLUMN json       boolean,
  DROP CONSTRAINT a_job_is_described;
UPDATE job_history SET type = job ->> 'type', queue = job ->> 'queue', priority = (job ->> 'priority')::smallint,
  run_at = (job ->> 'run_at')::timestamptz, created_at = (job ->> 'created_at')::timestamptz,
  json = (job ->> 'json')::boolean,
  job = nullif(job - '{type,queue,priority,run_at,created_at,json}'::text[], '{}')
WHERE kind = 'job';
ALTER TABLE job_history
  ADD CONSTRAINT a_job_is_described CHECK ((kind = 'job') = (type IS NOT NULL AND queue IS NOT NULL
    AND priority IS NOT NULL AND run_at IS NOT NULL AND created_at IS NOT NULL AND json IS NOT NULL)),
  ADD CONSTRAINT only_jobs_are_described CHECK (kind = 'job' OR (job IS NOT NULL) = (outcome = 'queued'));
