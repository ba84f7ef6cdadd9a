"""Users of Redis with the rights that docs/redis.md gives them: enough for everything, and for
nothing else.
"""

import re
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest

from scheduler import Scheduler, Worker, handler
from scheduler.dialects.channel import Channel
from scheduler.dialects.client import Client, script
from scheduler.dialects.interface import BegunMark, Cancelling, Handled, Pushed, Renewed
from scheduler.dialects.reliable.admin import ReliableAdmin
from scheduler.dialects.reliable.keys import Keys
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.dialects.standard.admin import StandardAdmin
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.errors import QueueError, QueueUnavailable
from scheduler.model.files import ProducerRule
from scheduler.model.oneshot import JobChange
from scheduler.model.policies import RETRY
from scheduler.model.states import State
from scheduler.queueing.producer import Producer
from tests.dialects.servers import House
from tests.dialects.values import ABOUT, back, ended, job, retried
from tests.support.waiting import wait_for

DOCUMENT = (Path(__file__).parents[2] / "docs/redis.md").read_text("utf-8")
LINES = {
    words[2]: words[1:]
    for words in map(str.split, re.findall(r"^ACL SETUSER .+$", DOCUMENT, re.MULTILINE))
}
SCRIPTS = {
    "worker": [
        *("finish", "leave", "renew", "silent", "waits", "crew/store"),
        *("standard/expired", "standard/finish", "standard/leave", "standard/renew"),
        *("standard/signal", "standard/waits"),
    ],
    "scheduler": [
        *("settling/acknowledge", "settling/hand_over", "crew/live"),
        *("begin", "cancel", "depths", "known", "pause", "push", "waits"),
        *("standard/acknowledge", "standard/begin", "standard/bury", "standard/cancel"),
        *("finish", "silent", "standard/expired", "standard/finish", "standard/signal"),
        *("standard/depths", "standard/known", "standard/parked_types", "standard/pause"),
        *("standard/push", "standard/waits"),
    ],
    "producer": ["produce"],
    "admin": [
        *("crew/live", "depths", "pause", "purge", "requeue"),
        *("standard/depths", "standard/forget", "standard/parked_types", "standard/pause"),
        *("standard/purge", "standard/requeue"),
    ],
}
ROLES = ("worker", "scheduler")  # of a queue with keys of ours


@pytest.fixture(params=ROLES)
def role(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def enter(house: House, role: str) -> Client:
    """Make the user as documented, and come in as it."""
    more = ["+cluster|slots", "+command"] if house.clustered else []
    house.everywhere("ACL", *LINES[role], *more)
    return Client(house.url.replace("//", f"//{role}:secret@"))


@pytest.fixture
def worker(house: House) -> Iterator[Client]:
    client = enter(house, "worker")
    yield client
    client.close()


@pytest.fixture
def scheduler(house: House) -> Iterator[Client]:
    client = enter(house, "scheduler")
    yield client
    client.close()


def test_everything_that_a_scheduler_and_a_worker_do(
    scheduler: Client, worker: Client, house: House
) -> None:
    ledger = ReliableQueue(scheduler, "mail", installation="3f1e")
    ours = ReliableQueue(worker, "mail", worker="w1")
    ledger.begin("1")
    assert ledger.epoch() == "1"
    jobs = [job() for _ in range(6)]
    assert ledger.push(jobs, epoch="1") == [Pushed.NEW] * 6
    first, second, third, fourth, fifth = ours.fetch(5, timeout=1)
    kept = ours.renew({first: None, second: None}, lease=timedelta(seconds=30), about=ABOUT)
    assert kept == [Renewed.KEPT] * 2
    assert (
        ReliableAdmin(scheduler, "mail", installation="3f1e").workers(9).workers[0].holds
        == ABOUT.holds
    )
    assert len(ours.held()) == 5
    assert all(
        ours.finish([ended(first), retried(second), back(third), ended(fourth, State.DEAD_LETTER)])[
            0
        ]
    )
    assert ledger.cancel([fifth.job.id, jobs[5].id]) == [Cancelling.RUNNING, Cancelling.REMOVED]
    assert ledger.known([fifth.job.id])[0] is not None
    assert ledger.depths().running == 1
    ledger.hand_over(wait_for(lambda: ledger.outcomes(10, timeout=0.1), "the ends"))
    ledger.acknowledge(wait_for(lambda: ledger.outcomes(10, timeout=0.1), "the ends again"))
    silent = ReliableQueue(worker, "mail", worker="w2", lease=timedelta(milliseconds=50))
    assert len(silent.fetch(1, timeout=1, first=1, begun=BegunMark(1, 0))) == 1
    wait_for(lambda: ours.recover(retried) == 1, "what a silent worker had is taken back")
    silent.renew({}, lease=silent.lease, begun=BegunMark(2, 9))
    assert len(silent.fetch(1, timeout=1)) == 1
    wait_for(lambda: ledger.recover(retried, foreign=False) == 1, "an instance takes it back")
    ours.retry_defaults.store(RETRY)
    assert ledger.retry_defaults.read("w1") == ours.retry_defaults.read("w1") == RETRY
    ours.leave()
    house.run("LPUSH", "jobqueue:{mail}:critical", "not a job")
    ours.fetch(5, timeout=0)
    assert ledger.depths().dead == 2  # the fourth, and this


def test_everything_that_a_scheduler_and_a_worker_do_in_the_standard_dialect(
    scheduler: Client, worker: Client, house: House
) -> None:
    ledger = StandardQueue(scheduler, "mail", installation="3f1e")
    queue = StandardQueue(worker, "mail", worker="w1")
    ledger.begin("1")
    jobs = [job() for _ in range(6)]
    assert ledger.push([*jobs, job(type="sms")], epoch="1") == [Pushed.NEW] * 7
    taken = queue.fetch(5, timeout=1, handled=Handled(types=["send"]), begun=BegunMark(0, 0))
    assert queue.renew({taken[0]: None}, lease=timedelta(seconds=30), about=ABOUT) == [Renewed.KEPT]
    admin = StandardAdmin(scheduler, "mail", installation="3f1e")
    assert admin.workers(9).workers[0].holds == ABOUT.holds
    assert len(queue.held()) == 5
    ends = [ended(taken[0]), retried(taken[1]), back(taken[2]), ended(taken[3], State.DEAD_LETTER)]
    assert all(queue.finish(ends, fetch=1, handled=Handled(types=["sms"]))[0])
    assert ledger.unhandled_types() == {}, "the worker reports the type that is parked"
    assert ledger.cancel([taken[4].job.id, taken[2].job.id])[1] is Cancelling.REMOVED
    assert ledger.push([jobs[0]], epoch="1") == [Pushed.FINISHED]
    assert ledger.known([taken[4].job.id])[0] is not None
    assert (ledger.depths().running, queue.waits().waiting) == (2, 2)
    ledger.hand_over(wait_for(lambda: ledger.outcomes(10, timeout=0.1), "the results"))
    ledger.acknowledge(wait_for(lambda: ledger.outcomes(10, timeout=0.1), "the results again"))
    dead = StandardQueue(worker, "mail", worker="w2", lease=timedelta(milliseconds=50))
    assert len(dead.fetch(1, timeout=1)) == 1
    wait_for(lambda: queue.recover(retried) == 1, "the lease is recovered")
    assert len(dead.fetch(1, timeout=1)) == 1
    wait_for(lambda: ledger.recover(retried, foreign=False) == 1, "an instance recovers it")
    queue.retry_defaults.store(RETRY)
    assert ledger.retry_defaults.read("w1") == queue.retry_defaults.read("w1") == RETRY
    house.run("ZADD", "jobqueue:{mail}:waiting", 0, "not a job")
    queue.fetch(5, timeout=0)
    assert ledger.depths().dead == 2
    queue.leave()


def test_everything_that_a_person_does_in_the_standard_dialect(
    house: House, worker: Client
) -> None:
    client = enter(house, "admin")
    admin = StandardAdmin(client, "mail", installation="3f1e")
    queue = StandardQueue(worker, "mail", worker="w1")
    StandardQueue(Client(house.url), "mail").push([job(id="a", installation="")], epoch="")
    assert [each.id for each in admin.peek(1)] == ["a"]
    [delivery] = queue.fetch(5, timeout=1)
    queue.finish([ended(delivery, State.DEAD_LETTER, error="gone")])
    assert [each.reason for each in admin.dead(5)] == ["gone"]
    assert admin.requeue(admin.dead(5)) == [True]
    queue.fetch(5, timeout=0, handled=Handled(types=["other"]))
    assert [each.id for each in admin.peek(1)] == ["a"]
    assert (admin.dead_count(), admin.purge(5), admin.workers(9).alive) == (0, 0, 1)
    assert sum(admin.depths().waiting.values()) == 1
    assert admin.unhandled_types() == {}, "the worker has not reported its types"
    admin.forget(["b"])
    admin.pause()
    assert admin.paused().ours
    admin.resume()
    listed = admin.keys()
    assert admin.erase([key.name for key in listed]) == len(listed)
    client.close()


def test_everything_that_a_person_does(house: House, worker: Client) -> None:
    client = enter(house, "admin")
    admin = ReliableAdmin(client, "mail", installation="3f1e")
    ours = ReliableQueue(worker, "mail", worker="w1")
    house.run(
        "LPUSH",
        "jobqueue:{mail}:low",
        '{"id":"a","filepath":"/a","priority":"low","retries":0}',
        "no job",
    )
    assert [each.id for each in admin.peek(1)] == ["a"]
    [delivery] = ours.fetch(5, timeout=1)
    ours.finish([ended(delivery, State.DEAD_LETTER, error="gone")])
    assert next(each.reason for each in admin.dead(5)) == "gone"
    assert admin.requeue([each for each in admin.dead(5) if each.type]) == [True]
    assert (admin.dead_count(), admin.purge(5), admin.workers(9).alive, admin.depths().dead) == (
        1,
        1,
        1,
        0,
    )
    admin.pause()
    assert admin.paused().ours
    admin.resume()
    listed = admin.keys()
    assert {key.type for key in listed} >= {"list", "zset", "string"}
    assert admin.erase([key.name for key in listed]) == len(listed)
    client.close()


def test_state_changes_are_said_and_heard(scheduler: Client, worker: Client) -> None:
    heard: list[JobChange] = []
    channel, told = Channel(scheduler, "3f1e"), Channel(worker, "3f1e")
    listening = threading.Thread(
        target=lambda: heard.extend(islice(channel.listen("acme", lambda: False), 1))
    )
    listening.start()
    wait_for(told.watched, "somebody listens")
    told.say([("acme", "1", State.RUNNING)], datetime.now(UTC))
    listening.join(60)
    assert [change.state for change in heard] == [State.RUNNING]


def test_a_job_goes_round(
    house: House, dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    clients = {role: enter(house, role) for role in ROLES}
    handler("twice", queue="mail")(lambda context, payload: payload * 2)
    worker = Worker(clients["worker"]._options, ["mail"])
    try:
        worker.start()
        with Scheduler(dsn, schema=schema, redis=clients["scheduler"]._options) as ring:
            made = ring.submit("acme", "twice", 21, queue="mail")
            assert ring.wait("acme", made.id, timeout=60).result == 42
    finally:
        worker.stop(grace=1.0)
    assert "NOPERM" not in caplog.text
    assert "permission" not in caplog.text


def test_nothing_else_is_allowed(house: House, role: str) -> None:
    client = enter(house, role)
    refused: list[Callable[[], object]] = [
        lambda: client.call("HGET", "app:users", "1"),
        lambda: client.run(
            script("reliable", "finish" if role == "worker" else "push"), ["app:users"] * 30, []
        ),
        lambda: ReliableQueue(client, "other", worker="w1").fetch(1, timeout=0),
        lambda: ReliableQueue(client, "other").push([job()], epoch=""),
        lambda: client.call("PUBLISH", "app:news", "x"),
        lambda: client.call("FLUSHALL"),
        lambda: client.call("CONFIG", "GET", "*"),
        lambda: client.call("KEYS", "*"),
        lambda: client.call("DEL", "jobqueue:{mail}:low"),
    ]
    for call in refused:
        with pytest.raises(
            QueueError, match="(?i)noperm|no permissions|can't run|not allowed"
        ) as caught:
            call()
        assert not isinstance(caught.value, QueueUnavailable)
    client.close()


def test_a_producer_queues_files(lone_servers: House, tmp_path: Path) -> None:
    lone_servers.everywhere("FLUSHALL")
    client = enter(lone_servers, "producer")
    for name in ("a.pdf", "b.txt"):
        (tmp_path / name).touch()
    producer = Producer(client, ProducerRule(scan_dir=str(tmp_path)), Keys.original())
    assert producer.run(threading.Event()).queued == {"high": 1, "low": 1}
    assert producer.run(threading.Event()).unchanged == 2
    with pytest.raises(QueueError):
        client.call("GET", "jobqueue:completed")
    client.close()


@pytest.mark.parametrize("role", SCRIPTS)
def test_the_line_has_every_command_of_the_scripts(role: str) -> None:
    """Also those of paths that are seldom taken; and no command that neither a script nor a call of
    ours names.
    """
    allowed = {word[1:].upper() for word in LINES[role] if word.startswith("+")}
    texts = [script(*f"reliable/{name}".split("/")[-2:]).text for name in SCRIPTS[role]]
    used = {command for text in texts for command in re.findall(r"redis\.p?call\('(\w+)'", text)}
    sources = (Path(__file__).parents[2] / "scheduler/dialects").rglob("*.py")
    named = {"SUBSCRIBE"} | {
        word for path in sources for word in re.findall(r'"([A-Z]+)"', path.read_text("utf-8"))
    }
    assert used <= allowed
    assert {command.partition("|")[0] for command in allowed} <= used | named
