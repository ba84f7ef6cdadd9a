"""Checks of the queues in Redis: their marks, what waits in them, and whether anybody works
them.
"""

from collections.abc import Iterator

from scheduler.doctor.findings import Severity, check, roughly, some
from scheduler.doctor.patient import Patient, Silent
from scheduler.doctor.redis import QUEUES
from scheduler.model.states import State

NOT_DRAINED = 10  # times as long as anything may wait


@check(
    "epoch-missing",
    Severity.FAULT,
    means="Redis has lost its memory, and no instance has fed its jobs again yet: "
    "within seconds one does.",
    cure="Start an instance with redis=; if one runs, its log says why it does not.",
    unless=QUEUES,
)
def _epochs(patient: Patient) -> Iterator[str]:
    for name, epoch in patient.epochs.items():
        mark = patient.queues[name].epoch()
        if epoch and mark != str(epoch):
            yield f"queue {name}: its mark in Redis is {mark or 'gone'}, not {epoch}"


@check(
    "queue-unworked",
    Severity.FAULT,
    means="Jobs wait, and no worker has any of them.",
    cure="Start a worker of this queue: `scheduler worker --app MODULE --queue NAME`; see whether "
    "its breaker is open.",
    unless=QUEUES,
)
def _unworked(patient: Patient) -> Iterator[str]:
    for name, (first, second) in patient.depths.items():
        unhandled = sum(patient.unhandled.get(name, {}).values())  # see `unhandled-type`
        waited = sum(first.waiting.values()) - unhandled
        waiting = sum(second.waiting.values()) - unhandled
        if (
            waited > 0
            and waiting >= waited
            and not (first.running or second.running or name in patient.paused)
        ):
            yield f"queue {name}: {waiting} jobs wait, none runs"


@check(
    "unhandled-type",
    Severity.FAULT,
    means="Jobs of this type wait in the queue, and no worker that lives has a handler for it.",
    cure="Start workers of a release that has the handler; `scheduler workers QUEUE --json` lists "
    "the types of each worker. Cancel the jobs if no release has it.",
    unless=QUEUES,
)
def _unhandled(patient: Patient) -> Iterator[str]:
    for name, types in patient.unhandled.items():
        counts = [f'"{kind}" ({count} waiting)' for kind, count in types.items()]
        yield f"queue {name}: no live worker handles type {some(counts)}"


@check(
    "queue-not-draining",
    Severity.WARNING,
    means="More is submitted than the workers can do, or higher priorities take all of their time.",
    cure='Start more workers, raise worker.count, or fetch="weighted" so that nobody starves.',
    unless=QUEUES,
)
def _draining(patient: Patient) -> Iterator[str]:
    waits = [
        each
        for each in patient.silent
        if each.known is not None
        and each.known.state is State.SCHEDULED
        and each.known.parked not in patient.unhandled.get(each.queue, {})
    ]
    late = [
        each
        for each in waits
        if each.age > NOT_DRAINED * patient.late
        and each.queue not in patient.paused
        and each.key.tenant not in patient.paused_tenants
    ]
    for name, jobs in _by_queue(late).items():
        oldest = roughly(max(each.age for each in jobs))
        yield f"queue {name}: {len(jobs)} jobs or more wait in Redis, the oldest since {oldest}"


@check(
    "dead-letters",
    Severity.WARNING,
    means="These jobs will not be tried again.",
    cure="`scheduler peek QUEUE --dead` shows them, `requeue-dlq QUEUE --all` retries, `purge-dlq "
    "QUEUE` drops them.",
    unless=QUEUES,
)
def _dead(patient: Patient) -> Iterator[str]:
    for name, count in patient.letters().items():
        if count:
            yield f"queue {name}: {count} dead letters"


@check(
    "ends-unsettled",
    Severity.FAULT,
    means="Jobs have ended, and the ledger does not know: no instance settles this queue, or one "
    "cannot.",
    cure="Start an instance with redis=; if one runs, its log says why it does not settle.",
    unless=QUEUES,
)
def _unsettled(patient: Patient) -> Iterator[str]:
    ended = [each for each in patient.silent if each.known is not None and each.known.state is None]
    for name, jobs in _by_queue(ended).items():
        yield f"queue {name}: {_named(jobs)}"


@check(
    "job-unknown",
    Severity.WARNING,
    means="Postgres has fed it and Redis does not know it; it is fed again once its visibility "
    "timeout is over.",
    cure="Wait, or look for who deletes keys in Redis; an instance with redis= must run.",
    unless=QUEUES,
)
def _unknown(patient: Patient) -> Iterator[str]:
    for name, jobs in _by_queue([each for each in patient.silent if each.known is None]).items():
        yield f"queue {name}: {_named(jobs)}"


def _by_queue(jobs: list[Silent]) -> dict[str, list[Silent]]:
    found: dict[str, list[Silent]] = {}
    for each in jobs:
        found.setdefault(each.queue, []).append(each)
    return found


def _named(jobs: list[Silent]) -> str:
    return some([f"{each.key.tenant}/{each.key.id}" for each in jobs])
