"""Deploys of new job types: a worker without a handler for a type leaves its jobs to others."""

import threading

from scheduler import JobContext, NewJob, RetryPolicy, Scheduler, State, handler
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for

ONCE = RetryPolicy(max_attempts=1)


def test_jobs_of_a_new_type_wait_for_the_first_new_worker(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    ran: list[object] = []
    lock = threading.Lock()

    @handler("known", queue="mail")
    def known(ctx: JobContext, payload: object) -> None:
        """A type of the old release and of the new one."""

    @handler("new", queue="mail")
    def new(ctx: JobContext, payload: object) -> None:
        with lock:
            ran.append(payload)

    make_worker(queues=["mail"], handlers=[known])
    jobs = ring.submit_many(
        [NewJob("acme", "new", number, queue="mail", retry=ONCE) for number in range(60)]
    )
    last = ring.submit("acme", "known", queue="mail", retry=ONCE)
    assert ring.wait("acme", last.id, timeout=60).state is State.COMPLETED
    reason = 'no live worker handles type "new"'
    wait_for(
        lambda: all(ring.get("acme", each.id).reason == reason for each in jobs), "all are parked"
    )
    waiting = [ring.get("acme", each.id) for each in jobs]
    assert {(each.state, each.attempt) for each in waiting} == {(State.SCHEDULED, 0)}
    assert ring.queue("mail").stats().unhandled == {"new": 60}
    make_worker(queues=["mail"], handlers=[known, new])
    ended = [ring.wait("acme", each.id, timeout=60) for each in jobs]
    assert {(each.state, each.attempt, each.reason) for each in ended} == {
        (State.COMPLETED, 1, None)
    }
    assert sorted(ran, key=str) == sorted(range(60), key=str)
