-- A queue may be paused, and its dead letters are kept until somebody has seen to them.
-- Jobs carry the context of the span in which they were submitted.

ALTER TABLE job_queue ADD COLUMN trace text;
CREATE INDEX job_queue_pending ON job_queue (queue, seq) WHERE open_dependencies > 0;
ALTER TABLE job_epoch ADD COLUMN paused_at timestamptz;

CREATE TABLE job_letter (
  tenant text COLLATE "C" NOT NULL,
  id     uuid             NOT NULL,
  queue  text COLLATE "C" NOT NULL,
  at     timestamptz      NOT NULL,
  PRIMARY KEY (tenant, id)
);
CREATE INDEX job_letter_queue_at ON job_letter (queue, at, tenant, id);

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
END $$;
