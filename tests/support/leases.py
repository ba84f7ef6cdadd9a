"""What Redis knows of the leases of a worker."""

from scheduler.dialects.client import Client
from scheduler.dialects.leasing import mark_of


def begun(redis: Client, queue: str, worker: str) -> bool:
    """Return whether all leases of a worker are marked as begun, and there are some."""
    ids = redis.call("SMEMBERS", f"jobqueue:{{{queue}}}:worker:{worker}")
    mark = mark_of(redis.call("HGET", f"jobqueue:{{{queue}}}:begun", worker))
    if not ids or mark is None:
        return False
    leases = redis.call("HMGET", f"jobqueue:{{{queue}}}:leases", *ids)
    return all(lease and mark.includes(int(lease.rpartition(b":")[2])) for lease in leases)
