"""The worker: fetch -> attempt -> acknowledge. It needs Redis alone, no Postgres.

`worker.py` is the process: its lifecycle, renewals and timeouts. `consumer.py` is one queue of it:
it fetches jobs and acknowledges their results. `executor.py` has the slots and the threads that run
handlers. `attempt.py` is one execution of one job, from its delivery to its result.
"""
