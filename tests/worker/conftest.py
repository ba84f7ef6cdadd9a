"""Workers and schedulers, as in the tests of the queues."""

from tests.queueing.conftest import dialect, make_worker, ring

__all__ = ["dialect", "make_worker", "ring"]
