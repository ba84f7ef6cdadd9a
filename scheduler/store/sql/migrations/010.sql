-- The ledger has the time at which a job was scheduled. `updated_at` of a live job is the time of its last state change.

ALTER TABLE job_history ADD COLUMN scheduled_at timestamptz;
ALTER TABLE job_queue ADD COLUMN fed_again_at timestamptz;

-- Aliases of jobs: the ids that handlers gave to jobs whose idempotency key was taken.
CREATE TABLE job_alias (
  tenant     text COLLATE "C" NOT NULL,
  id         uuid             NOT NULL,
  job_id     uuid             NOT NULL,
  created_at timestamptz      NOT NULL,
  PRIMARY KEY (tenant, id)
);
CREATE INDEX job_alias_created ON job_alias (created_at);

CREATE OR REPLACE FUNCTION tend_history(moment timestamptz, ahead integer, keep interval, OUT made integer, OUT dropped integer)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  home  text := current_schema();
  today date := (moment AT TIME ZONE 'UTC')::date;
  first timestamptz;
  name  text;
BEGIN
  made := 0;
  dropped := 0;
  IF NOT pg_try_advisory_xact_lock(hashtextextended('scheduler:history:' || home, 7307)) THEN
    RETURN;
  END IF;
  FOR day IN 0 .. ahead LOOP
    name := 'job_history_' || to_char(today + day, 'YYYYMMDD');
    first := (today + day)::timestamp AT TIME ZONE 'UTC';
    CONTINUE WHEN to_regclass(format('%I.%I', home, name)) IS NOT NULL
      OR EXISTS (SELECT FROM job_history_default d WHERE d.at >= first AND d.at < first + interval '1 day');
    EXECUTE format('CREATE TABLE %I.%I (LIKE %I.job_history INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', home, name, home);
    EXECUTE format('ALTER TABLE %I.job_history ATTACH PARTITION %I.%I FOR VALUES FROM (%L) TO (%L)',
      home, home, name, first, first + interval '1 day');
    made := made + 1;
  END LOOP;
  FOR name IN
    SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'job_history'::regclass AND c.relname ~ '^job_history_\d{8}$'
      AND to_date(right(c.relname, 8), 'YYYYMMDD') < ((moment - keep) AT TIME ZONE 'UTC')::date
  LOOP
    EXECUTE format('DROP TABLE %I.%I', home, name);
    dropped := dropped + 1;
  END LOOP;
  DELETE FROM job_history_default d WHERE d.at < moment - keep;
  DELETE FROM job_key k WHERE k.expires_at < moment;
  DELETE FROM job_letter l WHERE l.at < moment - keep;
  DELETE FROM job_alias a WHERE a.created_at < moment - keep;
END $$;
