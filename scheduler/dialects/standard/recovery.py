"""Recovery of orphaned leases: leases of workers whose registration has expired.

A lease that its worker had begun is charged: `decide` returns its result. A lease that was never
begun is redelivered without a charge, but only once for each job, so that a job whose fetch kills
its worker is not leased for ever.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import NamedTuple

from scheduler.dialects.client import Client, script
from scheduler.dialects.interface import BegunMark, Delivery, Result
from scheduler.dialects.leasing import mark_of
from scheduler.dialects.standard import messages
from scheduler.dialects.standard.finish import FinishArgs, FinishScript, Formats
from scheduler.dialects.standard.keys import Keys
from scheduler.errors import WireError

MAX_WORKERS = 100
PAGE = 100
LEASE = timedelta(seconds=30)


class Leased(NamedTuple):
    """An id in the set of a worker, with its lease and its delivery as far as they are readable."""

    id: bytes
    lease: messages.Lease | None
    delivery: Delivery | None
    record: bytes = b""
    error: str = ""
    newer: bool = False

    @property
    def letter(self) -> bytes:
        """The dead letter of a job that is unreadable."""
        return b"%b\0%b" % (self.id, self.record)


class Recovery:
    """Reads and recovers the leases of the workers of one queue."""

    def __init__(
        self, client: Client, queue: str, keys: Keys, finish: FinishScript, formats: Formats
    ) -> None:
        self._client = client
        self._queue = queue
        self._keys = keys
        self._finish = finish
        self._formats = formats
        self._jobs, self._leases, self._workers, self._begun = keys.named(
            "jobs", "leases", "workers", "begun"
        )

    def recover(self, decide: Callable[[Delivery], Result]) -> int:
        """Recover the leases of expired workers; return how many."""
        workers = self._client.run(script("standard", "expired"), [self._workers], [MAX_WORKERS])
        return sum(self._recover(each.decode(errors="replace"), decide) for each in workers)

    def _recover(self, worker: str, decide: Callable[[Delivery], Result]) -> int:
        begun = mark_of(self._client.call("HGET", self._begun, worker))
        recovered = 0
        for page in self.leased(worker):
            args = FinishArgs()
            for each in page:
                self._add(args, each, worker, begun, decide)
            answer = self._finish.run(worker, LEASE, args, recover=True)
            if answer.alive:
                return recovered
            recovered += sum(answer.accepted)
        self._finish.run(worker, LEASE, recover=True)  # removes a worker without leases
        return recovered

    def _add(
        self,
        args: FinishArgs,
        leased: Leased,
        worker: str,
        begun: BegunMark | None,
        decide: Callable[[Delivery], Result],
    ) -> None:
        lease, delivery = leased.lease, leased.delivery
        if leased.newer:
            return
        if lease is None or lease.worker != worker:
            args.drop(leased.id)
        elif delivery is None:
            args.bury(leased.id, lease.sequence, leased.letter, leased.error)
        else:
            delivery.begun = begun is None or begun.includes(lease.sequence)
            if delivery.begun or lease.redelivered:
                args.add(decide(delivery))
            else:
                args.add(Result(delivery, None), redelivered=True)

    def leased(self, worker: str) -> Iterator[list[Leased]]:
        """Read the leased jobs of a worker, page by page; there is always one page."""
        ids = list(self._client.call("SMEMBERS", self._keys.leased(worker)))
        for start in range(0, len(ids) or 1, PAGE):
            page = ids[start : start + PAGE]
            if not page:
                yield []
                return
            leases = self._client.call("HMGET", self._leases, *page)
            records = self._client.call("HMGET", self._jobs, *page)
            yield [self._leased(*each) for each in zip(page, leases, records, strict=True)]

    def _leased(self, id_: bytes, value: bytes | None, record: bytes | None) -> Leased:
        lease = None if value is None else messages.lease_of(value)
        newer = [
            number for each in (value, record) if each and (number := messages.newer_format(each))
        ]
        if newer:
            self._formats.met(newer)
            return Leased(id_, lease, None, newer=True)
        if lease is None:
            return Leased(id_, None, None)
        try:
            if record is None:
                return Leased(id_, lease, None, error="the record of a leased job is missing")
            job = messages.job_of(self._queue, id_, record)
        except WireError as error:
            return Leased(id_, lease, None, record or b"", str(error))
        uncharged = lease.attempt - lease.charged
        job.previous_attempt_id = lease.previous or job.previous_attempt_id
        delivery = Delivery(job, lease.attempt, lease.started_at, b"", lease.sequence, uncharged)
        delivery.worker, delivery.orphaned = lease.worker, lease.orphaned
        return Leased(id_, lease, delivery)
