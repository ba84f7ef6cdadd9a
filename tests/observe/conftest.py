"""The ring and its workers, as the tests of queues have them."""

from tests.queueing.conftest import dialect, make_worker, ring

__all__ = ["dialect", "make_worker", "ring"]
