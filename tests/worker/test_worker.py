"""A worker alone on its queue: what it takes, and when."""

import logging
import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

import scheduler
from scheduler import PermanentError, QueueError, handler
from scheduler.dialects.channel import Channel
from scheduler.dialects.client import Client
from scheduler.dialects.interface import Delivery, Note
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.model.reaper import ReaperRule
from tests.dialects.values import NOW, job
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import WOKEN, rest, wait_for
from tests.worker import children


def test_a_job_that_comes_while_an_end_is_sent_is_taken_at_once(
    redis: Client, redis_server: EmbeddedRedis, make_worker: MakeWorker
) -> None:
    ran = threading.Event()

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        ran.set()

    make_worker(block="5m", lease="1h")
    queue = StandardQueue(Client(redis_server.url), "mail")
    for _ in range(500):  # each comes while the end of the one before is on its way
        ran.clear()
        queue.push([job(installation="", type="mail")], epoch="")
        assert ran.wait(WOKEN)


def test_leases_are_kept_although_nobody_can_be_told(
    redis: Client,
    redis_server: EmbeddedRedis,
    make_worker: MakeWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: list[int] = []

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        attempts.append(ctx.attempt)
        rest(9.0)

    def refused(_: Channel) -> bool:
        raise QueueError("no permission for that key")

    monkeypatch.setattr(Channel, "watched", refused)
    for _ in range(2):  # what one loses, the other takes
        make_worker(lease="4s", reaper=ReaperRule(interval=timedelta(seconds=0.3)))
    queue = StandardQueue(Client(redis_server.url), "mail", installation="3f1e")
    queue.push([job(type="mail", expires_at=NOW + timedelta(days=36_500))], epoch="")
    wait_for(lambda: queue.depths().unsettled == 1, "its end", timeout=60)
    assert attempts == [1]


def test_that_an_attempt_failed_is_in_the_log_once_and_a_warning_when_it_was_the_last(
    redis: Client,
    redis_server: EmbeddedRedis,
    make_worker: MakeWorker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "scheduler")

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("the server is away\nsecond line")
        raise PermanentError("no such address")

    queue = StandardQueue(redis, "mail", installation="3f1e")
    policy = {"max_attempts": 5, "initial_delay_us": 1000, "jitter": False}
    sent = job(type="mail", policy=policy, expires_at=NOW + timedelta(days=36_500))
    queue.push([sent], epoch="")
    make_worker()
    wait_for(lambda: queue.depths().unsettled == 1, "its end")
    said = [
        (each.levelno, each.getMessage()) for each in caplog.records if sent.id in each.getMessage()
    ]
    assert said == [
        (logging.INFO, f"queue mail: attempt 1 of mail {sent.id}: retrying: ConnectionError"),
        (logging.WARNING, f"queue mail: attempt 2 of mail {sent.id}: failed: PermanentError"),
    ]


def test_a_context_names_its_attempts_and_its_worker(
    redis: Client, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[tuple[object, object]] = []

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        found.append((ctx.attempt_id, ctx.previous_attempt_id))
        ctx.logger.warning("attempt %d", ctx.attempt)
        if ctx.attempt == 1:
            raise ConnectionError

    queue = StandardQueue(redis, "mail", installation="3f1e")
    policy = {"max_attempts": 5, "initial_delay_us": 1000, "jitter": False}
    queue.push([job(type="mail", policy=policy, expires_at=NOW + timedelta(days=36_500))], epoch="")
    worker = make_worker()
    wait_for(lambda: queue.depths().unsettled == 1, "it has completed")
    (first, none), (second, previous) = found
    assert (none, previous) == (None, first)
    assert first != second
    lines = [each for each in caplog.records if each.name == "scheduler.job"]
    assert [vars(each)["worker_id"] for each in lines] == [worker.name] * 2


@pytest.mark.parametrize("dialect", ["standard", "reliable", "bullmq", "conveyor"])
def test_attempts_name_the_attempt_before_and_their_worker(
    ring: scheduler.Scheduler, make_worker: MakeWorker
) -> None:
    found: list[tuple[UUID | None, UUID | None, str]] = []

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        found.append((ctx.attempt_id, ctx.previous_attempt_id, ctx.worker))
        if ctx.attempt < 3:
            raise ConnectionError

    retry = scheduler.RetryPolicy(initial_delay="10ms", jitter=False)
    made = ring.submit("acme", "mail", queue="mail", retry=retry)
    worker = make_worker()
    done = ring.wait("acme", made.id, timeout=60)
    first, second, third = (attempt_id for attempt_id, *_ in found)
    assert [previous for _, previous, _ in found] == [None, first, second]
    shown = [(each["attempt_id"], each["previous_attempt_id"]) for each in done.attempts]
    expected = [(first, None), (second, first), (third, second)]
    assert [tuple(map(str, each)) for each in shown] == [tuple(map(str, each)) for each in expected]
    assert {each["worker"] for each in done.attempts} == {worker.name}
    assert {name for *_, name in found} == {worker.name}


def test_logger_names_the_worker_wherever_handlers_run(
    redis: Client, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    async def logs_on_loop(ctx: scheduler.JobContext, payload: object) -> None:
        children.logs(ctx, payload)

    handler("thread", queue="mail")(children.logs)
    handler("process", queue="mail", executor="process")(children.logs)
    handler("loop", queue="mail")(logs_on_loop)
    queue = StandardQueue(redis, "mail", installation="3f1e")
    later = NOW + timedelta(days=36_500)
    kinds = ("thread", "loop", "process")
    queue.push([job(type=kind, expires_at=later) for kind in kinds], epoch="")
    worker = make_worker()
    wait_for(lambda: queue.depths().unsettled == 3, "all have ended")
    lines = [vars(each) for each in caplog.records if each.name == "scheduler.job"]
    assert {each["message"]: each["worker_id"] for each in lines} == {
        f"in a {kind}": worker.name for kind in kinds
    }


def test_a_checkpoint_is_copied_and_must_be_json() -> None:
    reported: list[object] = []
    ctx = scheduler.JobContext(
        job(), 1, NOW, scheduler.Cancelled(), None, "w", 1, lambda _, value: reported.append(value)
    )
    value: dict[object, object] = {"row": 7}
    ctx.checkpoint(value)
    value[5] = "changed later, and not JSON"
    assert reported == [{"row": 7}]
    with pytest.raises(scheduler.InvalidPayload, match="checkpoint must be JSON"):
        ctx.checkpoint(b"row 7")


def test_progress_that_comes_during_a_renewal_is_sent_with_the_next(
    ring: scheduler.Scheduler, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewing, reported, ended = threading.Event(), threading.Event(), threading.Event()

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        ctx.progress(10)
        assert renewing.wait(60)
        ctx.progress(50)
        reported.set()
        assert ended.wait(120)

    worker = make_worker(lease="10m")
    queue = worker._consumers[0].queue
    renew = queue.renew

    def slowly(notes: dict[Delivery, Note | None], **options: Any) -> Any:
        if any(note is not None for note in notes.values()) and not renewing.is_set():
            renewing.set()
            assert reported.wait(60)
        return renew(notes, **options)

    monkeypatch.setattr(queue, "renew", slowly)
    made = ring.submit("acme", "mail", queue="mail")
    try:
        wait_for(lambda: ring.get("acme", made.id).progress == 50, "Redis has the progress")
    finally:
        ended.set()
