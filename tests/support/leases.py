"""What Redis knows of the leases of a worker."""

from scheduler.dialects.bullmq.keys import Keys as BullMQKeys
from scheduler.dialects.client import Client
from scheduler.dialects.conveyor.keys import Keys as ConveyorKeys
from scheduler.dialects.leasing import mark_of
from scheduler.dialects.opening import open_queue


def begun(redis: Client, queue: str, worker: str, dialect: str = "standard") -> bool:
    """Return whether all leases of a worker are marked as begun, and there are some."""
    marks, field = f"jobqueue:{{{queue}}}:begun", worker
    if dialect == "conveyor":
        marks, field = ConveyorKeys().ring(queue, "begun"), f"{worker}:{queue}"
    if dialect == "bullmq":
        mark = mark_of(redis.call("GET", BullMQKeys(queue).own(f"begun:{worker}")))
    else:
        mark = mark_of(redis.call("HGET", marks, field))
    leases = open_queue(redis, queue, {"dialect": dialect}, worker=worker).held()
    return (
        bool(leases) and mark is not None and all(mark.includes(each.sequence) for each in leases)
    )
