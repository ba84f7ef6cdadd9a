"""Labels of jobs are any text and can be cleared. `events()` ends with its scheduler."""

import threading
from typing import Any

import pytest

import scheduler
from scheduler import InvalidOption, JobChange, Scheduler, State, handler
from scheduler.testing import Scheduler as ManualScheduler
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import rest, wait_for

TEXTS = ("👩‍💻", "two\nlines", "no\u00a0break", "\t\x01", "é" * 256)


@pytest.mark.parametrize("dialect", ["standard", "reliable", "bullmq", "conveyor"])
def test_labels_are_any_text_without_nul(
    ring: Scheduler, make_worker: MakeWorker, dialect: str
) -> None:
    seen: list[tuple[Any, ...]] = []

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        seen.append((ctx.idempotency_key, ctx.correlation_id, dict(ctx.tags)))

    make_worker()
    for text in TEXTS:
        labels: Any = {"idempotency_key": text, "correlation_id": text, "tags": {text[:200]: text}}
        made = ring.submit("acme", "mail", queue="mail", **labels)
        assert ring.submit("acme", "mail", queue="mail", **labels).id == made.id
        job = ring.wait("acme", made.id, timeout=60)
        assert (job.idempotency_key, job.correlation_id) == (text, text)
        assert seen[-1] == (text, text, {text[:200]: text})


@pytest.mark.parametrize("name", ["idempotency_key", "correlation_id"])
@pytest.mark.parametrize("text", ["", "a\0b", "\ud800", "x" * 257])
def test_other_labels_are_refused(instance: ManualScheduler, name: Any, text: str) -> None:
    options: Any = {name: text}
    with pytest.raises(InvalidOption, match=name):
        instance.submit("acme", "mail", **options)


def test_an_update_clears_labels(instance: ManualScheduler) -> None:
    labels: Any = {"idempotency_key": "k", "correlation_id": "c", "tags": {"a": "b"}}
    url = "https://example.com/x"
    made = instance.submit("acme", "mail", callback_url=url, **labels)
    job = instance.update_job("acme", made.id, tags={}, correlation_id="", callback_url="")
    assert (job.tags, job.correlation_id, job.callback_url) == ({}, None, None)
    assert instance.submit("acme", "mail", idempotency_key="k").id == made.id
    job = instance.update_job("acme", made.id, idempotency_key="")
    assert job.idempotency_key is None
    assert instance.submit("acme", "mail", idempotency_key="k").id != made.id
    another: Any = "another"
    with pytest.raises(InvalidOption, match="idempotency_key"):
        instance.update_job("acme", made.id, idempotency_key=another)


def test_events_end_when_their_scheduler_is_stopped(ring: Scheduler) -> None:
    changes: list[JobChange] = []
    errors: list[BaseException] = []

    def listen() -> None:
        try:
            changes.extend(ring.events("acme"))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=listen) for _ in range(3)]
    for thread in threads:
        thread.start()
    services = ring._running().ring
    assert services is not None
    wait_for(services.ring.channel.watched, "listened")
    rest(0.3)
    made = ring.submit("acme", "mail", queue="nobody")
    wait_for(lambda: ring.get("acme", made.id).state is State.SCHEDULED, "fed")
    ring.cancel()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert not any(thread.is_alive() for thread in threads)
