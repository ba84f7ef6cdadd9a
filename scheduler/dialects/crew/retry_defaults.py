"""The default retry policies of workers, which recovery applies to jobs without a policy.

Each worker stores its policy before it leases a job. It repeats that after a failed call and with
each status report, because a failover can lose the policy. A policy outlives its worker, because
the leases of a dead worker do, and expires by itself.
"""

from datetime import timedelta

import orjson

from scheduler.dialects.client import Client, script
from scheduler.errors import SchedulerError
from scheduler.model.policies import TIMEOUTS, policy_json, policy_of
from scheduler.model.retries import RetryPolicy

TTL_MS = timedelta(days=7) // timedelta(milliseconds=1)  # as long as a job lives by default


class RetryDefaults:
    """The policies of the workers of one queue; `prefix` begins the key of each."""

    def __init__(self, client: Client, prefix: str, worker: str) -> None:
        self._client = client
        self._prefix = prefix
        self._worker = worker

    def key(self, worker: str) -> str:
        """Return the string in which a worker stores its policy."""
        return self._prefix + worker

    def store(self, retry: RetryPolicy) -> None:
        """Store the policy of this worker."""
        text = policy_json(retry, TIMEOUTS) or "{}"
        self._client.run(script("crew", "store"), [self.key(self._worker)], [text, TTL_MS])

    def read(self, worker: str) -> RetryPolicy | None:
        """Return the policy of a worker; None if it stored none that this version can read."""
        text = self._client.call("GET", self.key(worker))
        try:
            return None if text is None else policy_of(orjson.loads(text))[0].checked()
        except (ValueError, TypeError, AttributeError, OverflowError, SchedulerError):
            return None
