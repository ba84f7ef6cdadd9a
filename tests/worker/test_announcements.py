"""Starts and progress of jobs, published for clients that listen."""

import math
import threading
from collections.abc import Iterator

import pytest

from scheduler.dialects.channel import Channel
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import QueueUnavailable
from scheduler.model.oneshot import JobChange
from scheduler.model.states import State
from scheduler.worker.announcements import FIND_LISTENERS_INTERVAL_S, MIN_INTERVAL_S
from scheduler.worker.attempt import Attempt
from tests.support.waiting import wait_for
from tests.worker.driver import Driver

INSTALLATION = "3f1e"


class Listener:
    """Collects what is published of the jobs of a tenant."""

    def __init__(self, url: str) -> None:
        self.changes: list[JobChange] = []
        self._client = Client(url)
        self.channel = Channel(self._client, INSTALLATION)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        for change in self.channel.listen("acme", self._ended.is_set):
            self.changes.append(change)

    def progress(self, count: int) -> list[float | None]:
        """Wait for so many changes; return their progress, None for a start."""
        wait_for(lambda: len(self.changes) >= count, f"{count} changes", every=0.01)
        return [change.progress for change in self.changes]

    def close(self) -> None:
        self._ended.set()
        self._thread.join(60)
        self._client.close()


@pytest.fixture
def driver(redis: Client) -> Driver:
    return Driver(redis)


@pytest.fixture
def listener(redis: Client, redis_server: EmbeddedRedis) -> Iterator[Listener]:
    made = Listener(redis_server.url)
    wait_for(made.channel.watched, "the listener listens")
    yield made
    made.close()


def running(driver: Driver) -> Attempt:
    """Lease a job when the worker knows of the listener; return its attempt, as if it ran."""
    driver.push()
    driver.call()
    driver.run_all()
    driver.clock += FIND_LISTENERS_INTERVAL_S
    driver.announcements.publish()
    return lease(driver)


def lease(driver: Driver) -> Attempt:
    driver.push()
    driver.wake_up()
    driver.call()
    attempt = driver.task()
    assert isinstance(attempt, Attempt)
    return attempt


def report(attempt: Attempt, percent: float) -> None:
    attempt.report("progress", [percent, f"{percent:g} rows"])


def test_first_progress_is_published_now_and_newest_when_due(
    driver: Driver, listener: Listener
) -> None:
    attempt = running(driver)
    for percent in (1.0, 2.0, 3.0):
        report(attempt, percent)
    assert driver.renewals_wanted, "the keeper is woken"
    due = driver.announcements.publish()
    assert listener.progress(2) == [None, 1.0], "the start, and the first report"
    assert due == driver.clock + MIN_INTERVAL_S
    report(attempt, 4.0)
    driver.clock += 0.9 * MIN_INTERVAL_S
    assert driver.announcements.publish() == due
    driver.clock = due
    assert driver.announcements.publish() == math.inf
    assert listener.progress(3) == [None, 1.0, 4.0], "one in each interval, the newest"
    last = listener.changes[-1]
    assert (last.id, last.state, last.message) == (
        attempt.delivery.job.id,
        State.RUNNING,
        "4 rows",
    )
    assert listener.changes[1].at <= last.at


def test_last_progress_is_published_before_the_result_is_sent(
    driver: Driver, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = running(driver)
    for percent in (1.0, 2.0, 3.0):
        report(attempt, percent)
    finish, published = driver.queue.finish, []

    def finished(*args: object, **options: object) -> object:
        published.extend(listener.progress(3))
        return finish(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(driver.queue, "finish", finished)
    driver.executor.ready.appendleft(attempt)
    driver.run()
    driver.call()
    assert published == [None, 1.0, 3.0]
    driver.clock += MIN_INTERVAL_S
    assert driver.announcements.publish() == math.inf
    report(attempt, 4.0)
    assert driver.announcements.publish() == math.inf, "the attempt has ended"


def test_older_progress_on_its_way_is_published_before_the_last(
    driver: Driver, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = running(driver)
    report(attempt, 1.0)
    send, sending, go_on = Channel.publish_progress, threading.Event(), threading.Event()

    def slowly(self: Channel, reports: list[JobChange]) -> None:
        if not sending.is_set():
            sending.set()
            assert go_on.wait(60)
        send(self, reports)

    monkeypatch.setattr(Channel, "publish_progress", slowly)
    keeper = threading.Thread(target=driver.announcements.publish)
    keeper.start()
    assert sending.wait(60)
    report(attempt, 2.0)
    result = threading.Thread(target=driver.announcements.publish_last, args=([attempt],))
    result.start()
    result.join(0.2)  # time to overtake, for an implementation that would
    go_on.set()
    for thread in (keeper, result):
        thread.join(60)
        assert not thread.is_alive()
    assert listener.progress(3) == [None, 1.0, 2.0]


def test_progress_of_a_lost_lease_is_not_published(driver: Driver, listener: Listener) -> None:
    attempt, other = running(driver), lease(driver)
    report(attempt, 1.0)
    attempt.lost = True
    report(other, 2.0)
    driver.announcements.publish()
    wait_for(lambda: listener.changes and listener.changes[-1].progress == 2.0, "progress")
    assert all(change.progress != 1.0 for change in listener.changes)


def test_result_is_sent_though_its_progress_cannot_be_published(
    driver: Driver, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = running(driver)
    report(attempt, 1.0)

    def unavailable(*_: object) -> None:
        raise QueueUnavailable("no answer")

    monkeypatch.setattr(Channel, "publish_progress", unavailable)
    driver.executor.ready.appendleft(attempt)
    driver.run()
    driver.call()
    assert driver.feed.depths().unsettled == 2


def test_without_listeners_progress_costs_no_call(driver: Driver, redis: Client) -> None:
    attempt = running(driver)
    redis.call("CONFIG", "RESETSTAT")
    for percent in range(100):
        report(attempt, float(percent))
        assert driver.announcements.publish() == math.inf
    driver.announcements.publish_last([attempt])
    calls = set(redis.call("INFO", "commandstats")) - {"cmdstat_config|resetstat", "cmdstat_info"}
    assert calls == set()
