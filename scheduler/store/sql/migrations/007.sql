-- A handler sees the idempotency key of its job. Live jobs get the keys that they were submitted with.

ALTER TABLE job_queue ADD COLUMN idempotency_key text;
UPDATE job_queue q SET idempotency_key = k.key FROM job_key k WHERE k.tenant = q.tenant AND k.job_id = q.id;
