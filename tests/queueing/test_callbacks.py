"""Callbacks: told once, signed, until the receiver knows; with real receivers and a real
Postgres.
"""

import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

import scheduler
from scheduler import (
    ConfigError,
    InvalidOption,
    InvalidSignature,
    Scheduler,
    State,
    handler,
    verify_callback,
)
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.queueing import callbacks as module
from scheduler.queueing import posting
from scheduler.queueing.callbacks import Callbacks, failure_of
from scheduler.queueing.ending import end
from scheduler.queueing.ledger import Ledger, alone
from scheduler.queueing.posting import Answer, is_public
from scheduler.queueing.signing import sign
from scheduler.service import Service
from scheduler.store.engine import BoundedConnection
from scheduler.store.job_callback import Callback, CallbackTable
from scheduler.store.job_queue import Ending, JobKey
from scheduler.store.queries import statement
from scheduler.store.ring import RingTable
from scheduler.store.steps import run_inside
from tests.queueing.conftest import MakeWorker
from tests.queueing.receivers import Received, receiver
from tests.store.test_queue_plans import nodes, ours, scans
from tests.support.waiting import rest, wait_for
from tests.support.watch import Watch

SECRET = "not so secret, in a test"

Make = Callable[..., Callbacks]


@pytest.fixture
def plain(dsn: str, schema: str) -> Iterator[Scheduler]:
    """A scheduler that only submits and ends jobs: callbacks are called by the test."""
    with Scheduler(dsn, schema=schema) as made:
        yield made


@pytest.fixture
def make(plain: Scheduler, schema: str) -> Iterator[Make]:
    made: list[Callbacks] = []

    def make(
        *,
        secret: str | None = SECRET,
        private: bool = True,
        table: type[CallbackTable] = CallbackTable,
    ) -> Callbacks:
        instance = plain._running()
        ring = RingTable(schema, lambda: None)
        ledger = Ledger(
            databases=instance.databases, jobs=instance.queue, ring=ring, installation="x"
        )
        each = Callbacks(
            ledger,
            table(schema, lambda: None),
            now=lambda: datetime.now(UTC),
            secret=secret,
            private=private,
        )
        made.append(each)
        return each

    yield make
    assert all(each.stop(20) for each in made)


def step(callbacks: Callbacks) -> None:
    """Post what is due, and wait for it."""
    callbacks.step()
    assert callbacks.stop(20)


def ended(instance: Scheduler, url: str, **options: Any) -> UUID:
    """End a job that has a callback."""
    job = instance.submit(
        "acme", "mail", {"secret": "payload"}, callback_url=url, delay="1h", **options
    ).id
    assert instance.cancel_job("acme", job, reason="as the test says") is State.CANCELLED
    return job


def rows(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return connection.execute(
        "SELECT job_id, attempt, gave_up_at IS NOT NULL, error, due_at - now() FROM job_callback "
        "ORDER BY created_at"
    ).fetchall()


def hasten(connection: psycopg.Connection[Any]) -> None:
    connection.execute("UPDATE job_callback SET due_at = now() WHERE gave_up_at IS NULL")


def test_each_end_is_told_once_and_signed(
    dsn: str,
    schema: str,
    connection: psycopg.Connection[Any],
    redis: Client,
    redis_server: EmbeddedRedis,
    make_worker: MakeWorker,
) -> None:
    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: dict[str, Any]) -> dict[str, int]:
        if "bad" in payload:
            raise scheduler.PermanentError("never")
        return {"big": 2**53}

    make_worker()
    options: Any = {"redis": redis_server.url, "callback_secret": SECRET, "callback_private": True}
    with receiver() as there, Scheduler(dsn, schema=schema, **options) as ring:
        labels: Any = {"queue": "mail", "tags": {"a": "b"}, "correlation_id": "c"}
        good = ring.submit(
            "acme", "mail", {"secret": 1}, callback_url=there.url("/good?x=1"), **labels
        ).id
        bad = ring.submit("acme", "mail", {"bad": 1}, queue="mail").id
        swept = ring.submit(
            "acme", "mail", {}, queue="mail", after=[bad], callback_url=there.url("/swept")
        ).id
        gone = ring.submit("acme", "mail", {}, delay="1h", callback_url=there.url("/gone")).id
        ring.cancel_job("acme", gone, reason="enough")
        late = ring.submit(
            "acme",
            "mail",
            {},
            queue="nobody",
            callback_url=there.url("/late"),
            timeouts=scheduler.Timeouts(lifetime="1s"),
        ).id
        wait_for(lambda: len(there.got) == 4, "four callbacks")
        wait_for(lambda: not rows(connection), "all of them noted")
        job = ring.get("acme", good)
    told = {each.path: verify_callback(SECRET, each.headers, each.body) for each in there.got}
    assert job.completed_at is not None
    assert datetime.fromisoformat(told["/good?x=1"].pop("completed_at")) == job.completed_at  # type: ignore[attr-defined]
    assert told["/good?x=1"] == {
        "tenant": "acme",
        "id": str(good),
        "type": "mail",
        "queue": "mail",
        "state": "completed",
        "attempt": 1,
        "reason": None,
        "correlation_id": "c",
        "tags": {"a": "b"},
        "result": {"big": 2**53},
    }
    assert (told["/swept"]["id"], told["/swept"]["state"]) == (str(swept), "failed")
    assert str(bad) in told["/swept"]["reason"]
    assert (told["/gone"]["state"], told["/gone"]["reason"]) == ("cancelled", "enough")
    assert (told["/late"]["id"], told["/late"]["state"]) == (str(late), "dead_letter")
    assert not any(b"secret" in each.body for each in there.got)
    request = there.got[0]
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Host"] == f"127.0.0.1:{there.port}"
    assert UUID(request.headers["Scheduler-Delivery"]).version == 5
    assert request.headers["User-Agent"] == "singleton-scheduler"


def test_a_receiver_that_fails_is_asked_again(
    plain: Scheduler, make: Make, connection: psycopg.Connection[Any]
) -> None:
    def twice(request: Received) -> tuple[int, dict[str, str]]:
        return (500 if request.number == 1 else 429 if request.number == 2 else 200), {
            "Retry-After": "100"
        }

    callbacks = make()
    with receiver(twice) as there:
        job = ended(plain, there.url())
        step(callbacks)
        ((id_, attempt, over, error, due),) = rows(connection)
        assert (id_, attempt, over, error) == (job, 1, False, "the receiver answered 500")
        assert timedelta(seconds=90) < due <= timedelta(seconds=100)
        step(callbacks)
        assert len(there.got) == 1
        for _ in range(2):
            hasten(connection)
            step(callbacks)
    assert rows(connection) == []
    assert len({each.headers["Scheduler-Delivery"] for each in there.got}) == 1
    assert len(there.got) == 3


def test_nobody_there_is_tried_again_for_a_day(
    plain: Scheduler,
    make: Make,
    connection: psycopg.Connection[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ended(plain, f"http://127.0.0.1:{closed.getsockname()[1]}/")
    callbacks = make()
    step(callbacks)
    ((_, attempt, over, error, due),) = rows(connection)
    assert (attempt, over) == (1, False)
    assert "refused" in error
    assert timedelta(0) < due < timedelta(seconds=2)
    connection.execute("UPDATE job_callback SET attempt = 14")
    hasten(connection)
    step(callbacks)
    assert timedelta(minutes=50) < rows(connection)[0][4] < timedelta(minutes=61)
    connection.execute("UPDATE job_callback SET created_at = created_at - interval '1 day'")
    hasten(connection)
    step(callbacks)
    ((_, _, over, error, _),) = rows(connection)
    assert over
    assert "given up at attempt 16" in error
    assert "given up at attempt 16" in caplog.text
    connection.execute("UPDATE job_callback SET gave_up_at = now() - interval '23 hours'")
    step(make())
    assert rows(connection)
    connection.execute("UPDATE job_callback SET gave_up_at = now() - interval '25 hours'")
    step(make())
    assert rows(connection) == []


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422])
def test_a_refusal_is_final(
    plain: Scheduler, make: Make, connection: psycopg.Connection[Any], status: int
) -> None:
    with receiver(lambda _: (status, {})) as there:
        ended(plain, there.url())
        step(make())
        assert [row[2:4] for row in rows(connection)] == [
            (True, f"given up at attempt 1: the receiver answered {status}")
        ]
        hasten(connection)
        step(make())
    assert len(there.got) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(
    plain: Scheduler, make: Make, connection: psycopg.Connection[Any], status: int
) -> None:
    with (
        receiver() as other,
        receiver(lambda _: (status, {"Location": other.url("/other")})) as there,
    ):
        ended(plain, there.url())
        step(make())
        assert not other.got
    assert len(there.got) == 1
    ((_, _, over, error, _),) = rows(connection)
    assert over
    assert f"{status}, a redirect to {other.url('/other')}" in error


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "[::1]",
        "localhost",
        "2130706433",
        "127.1",
        "0.0.0.0",
        "[::]",
        "169.254.169.254",
        "10.1.2.3",
        "100.64.0.1",
        "[::ffff:10.0.0.1]",
        "[fe80::1]",
        "[fd00::1]",
        "224.0.0.1",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
    ],
)
def test_an_address_that_is_not_public_is_refused(
    plain: Scheduler,
    make: Make,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    host: str,
) -> None:
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("it connects"))
    with receiver() as there:
        ended(plain, there.url(host=host))
        callbacks = make(private=False)
        callbacks.step()
        monkeypatch.undo()
        assert callbacks.stop(20)
        assert not there.got
    ((_, attempt, over, error, _),) = rows(connection)
    assert (attempt, over) == (1, True)
    assert "not a public address; see callback_private" in error


def test_which_addresses_are_public() -> None:
    assert all(map(is_public, ("8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8")))
    private = (
        "192.168.1.1",
        "172.16.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "fec0::1",
        "ff02::1",
        "fe80::1%eth0",
        "::",
    )
    assert not any(map(is_public, private))


def test_a_name_is_resolved_once_and_each_of_its_addresses_is_checked(
    plain: Scheduler,
    make: Make,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with receiver() as there:
        known = {
            "rebinding.example": [["127.0.0.1"], ["10.0.0.1"]],
            "mixed.example": [["8.8.8.8", "127.0.0.1"]],
        }

        def resolve(host: str, port: int, **_: Any) -> list[Any]:
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
                for each in known[host].pop(0)
            ]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        mixed = ended(plain, there.url(host="mixed.example"))
        step(make(private=False))
        ((id_, _, over, error, _),) = rows(connection)
        assert (id_, over) == (mixed, True)
        assert "leads to 127.0.0.1" in error
        connection.execute("DELETE FROM job_callback")
        ended(plain, there.url(host="rebinding.example"))
        step(make())
        assert rows(connection) == []
    assert known == {"rebinding.example": [["10.0.0.1"]], "mixed.example": []}
    assert there.got[0].headers["Host"] == f"rebinding.example:{there.port}"


def test_each_address_of_a_name_is_tried(
    plain: Scheduler,
    make: Make,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with receiver() as there:

        def resolve(_host: str, port: int, **_: Any) -> list[Any]:
            places = [
                (9999, "127.0.0.1"),
                (socket.AF_INET, "127.0.0.2"),
                (socket.AF_INET, "127.0.0.1"),
            ]
            return [(family, socket.SOCK_STREAM, 6, "", (each, port)) for family, each in places]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        ended(plain, there.url(host="several.example"))
        step(make())
    assert (rows(connection), len(there.got)) == ([], 1)


def test_a_crash_between_the_post_and_its_note_repeats_it(
    plain: Scheduler, make: Make, connection: psycopg.Connection[Any]
) -> None:
    class Crashing(CallbackTable):
        def told(self, callback: Callback) -> Any:
            raise RuntimeError("the process dies here")

    with receiver() as there:
        job = ended(plain, there.url())
        step(make(table=Crashing))
        ((id_, attempt, over, _, due),) = rows(connection)
        assert (id_, attempt, over) == (job, 1, False)
        assert timedelta(seconds=30) < due <= timedelta(seconds=60)
        step(make())
        assert len(there.got) == 1
        hasten(connection)
        step(make())
    assert rows(connection) == []
    first, second = there.got
    assert first.headers["Scheduler-Delivery"] == second.headers["Scheduler-Delivery"]
    assert first.body == second.body


def test_an_attempt_that_lost_its_lease_changes_nothing_unless_it_told(
    plain: Scheduler, make: Make, connection: psycopg.Connection[Any]
) -> None:
    def overtaken(request: Received) -> tuple[int, dict[str, str]]:
        connection.execute(
            "UPDATE job_callback SET attempt = attempt + 1, due_at = now() + interval '1 hour'"
        )
        return (410 if request.number == 1 else 500 if request.number == 2 else 200), {}

    with receiver(overtaken) as there:
        ended(plain, there.url())
        for _ in range(2):
            step(make())
            ((_, _, over, error, due),) = rows(connection)
            assert (over, error) == (False, None)
            assert due > timedelta(minutes=59)
            hasten(connection)
        step(make())
    assert rows(connection) == []


def test_instances_never_tell_the_same_one_at_once(
    plain: Scheduler, make: Make, connection: psycopg.Connection[Any]
) -> None:
    inside: list[str] = []
    twice: list[str] = []

    def slowly(request: Received) -> tuple[int, dict[str, str]]:
        if request.path in inside:
            twice.append(request.path)
        inside.append(request.path)
        rest(0.05)
        return 200, {}

    with receiver(slowly) as there, running(make(), make(), make()):
        for n in range(60):
            ended(plain, there.url(f"/{n}"))
        wait_for(lambda: not rows(connection), "all told")
    assert twice == []
    assert sorted(there.paths()) == sorted(f"/{n}" for n in range(60))


def test_a_claim_under_way_is_passed_over(
    plain: Scheduler, make: Make, dsn: str, schema: str
) -> None:
    with receiver() as there, psycopg.connect(dsn) as other:
        ended(plain, there.url("/taken"))
        table = CallbackTable(schema, lambda: None)
        assert run_inside(other, alone(table.claim(limit=1, lease=timedelta(seconds=60))))
        ended(plain, there.url("/free"))
        callbacks = make()
        thread = threading.Thread(target=step, args=(callbacks,))
        thread.start()
        thread.join(60)
        waits = thread.is_alive()
        other.commit()
        thread.join(60)
        assert not waits
        step(callbacks)
    assert there.paths() == ["/free"]


@contextmanager
def running(*several: Callbacks) -> Iterator[None]:
    services = []
    for each in several:
        service = Service("callbacks", each.step)
        each.wake = service.wake
        services.append(service)
        service.start()
    try:
        yield
    finally:
        for service in services:
            service.stop(10)


def test_a_slow_receiver_does_not_hold_up_the_others(
    plain: Scheduler,
    make: Make,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "DEADLINE", 600.0)  # the slow calls end when the test says so
    go = threading.Event()
    open_: list[int] = []

    def answers(request: Received) -> tuple[int, dict[str, str]]:
        if request.path == "/slow":
            idle = "SELECT 1 FROM pg_stat_activity WHERE state LIKE 'idle in%' AND query LIKE '%job_callback%'"
            open_.append(len(connection.execute(idle).fetchall()))
            go.wait(300)
        return 200, {}

    with receiver(answers) as there, running(make()):
        for path in ("/slow", *(f"/{n}" for n in range(20)), "/slow"):
            ended(plain, there.url(path))
        wait_for(lambda: len(there.got) == 22, "the quick ones told", timeout=60)
        wait_for(lambda: len(rows(connection)) == 2, "the slow ones are left", timeout=60)
        assert open_ == [0, 0]
        go.set()
        wait_for(lambda: not rows(connection), "the slow ones told")


def test_no_lock_of_callbacks_is_held_across_io(
    plain: Scheduler, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch({})
    watch.begin(monkeypatch)
    watch.over(BoundedConnection, "wait", monkeypatch)
    watch.over(module, "post", monkeypatch)
    with receiver() as there, running(make()):
        for _ in range(3):
            ended(plain, there.url())
        wait_for(lambda: len(there.got) == 3, "told")
    assert watch.violations == []
    assert {"scheduler.queueing.callbacks.Callbacks", "scheduler.service.Service"} <= watch.taken


def test_what_is_due_is_found_by_its_index(plain: Scheduler, dsn: str, schema: str) -> None:
    given = {"now": None, "limit": 4, "lease": timedelta(seconds=60), "keep": timedelta(days=1)}
    with ours(dsn) as connection:
        connection.execute(SQL("SET search_path = {}").format(Identifier(schema)))
        for gave_up, many in (("NULL", 20_000), ("now()", 2000)):
            connection.execute(
                "INSERT INTO job_callback (tenant, job_id, url, state, due_at, created_at, "
                "gave_up_at, error)"
                f" SELECT 't', gen_random_uuid(), 'http://x', 'failed', now(), now(), {gave_up}, "
                "'x'"
                f" FROM generate_series(1, {many})".encode()
            )
        connection.execute("ANALYZE job_callback")
        for name, index in (
            ("claim", "job_callback_due"),
            ("waiting", "job_callback_due"),
            ("forget", "job_callback_gave_up"),
        ):
            explain = (
                f"EXPLAIN (FORMAT json) {statement('job_callback', name, schema).decode()}".encode()
            )
            plan = nodes(connection.execute(explain, given))
            assert index in [node.get("Index Name") for node in plan], plan
            assert not scans(plan), plan
            assert not [node for node in plan if node["Node Type"].endswith("Sort")], plan


def test_the_next_one_goes_as_soon_as_there_is_room(plain: Scheduler, make: Make) -> None:
    woken = threading.Semaphore(0)
    callbacks = make()
    callbacks.wake = woken.release
    with receiver() as there:
        for n in range(6):
            ended(plain, there.url(f"/{n}"))
        step(callbacks)
        assert len(there.got) == 4
        assert all(woken.acquire(timeout=5) for _ in range(4))
        step(callbacks)
    assert len(there.got) == 6


def test_an_end_that_is_rolled_back_is_not_told(
    plain: Scheduler, make: Make, dsn: str, connection: psycopg.Connection[Any]
) -> None:
    with receiver() as there:
        job = plain.submit("acme", "mail", delay="1h", callback_url=there.url()).id
        ending = Ending(key=JobKey("acme", job), state=State.CANCELLED)
        with psycopg.connect(dsn) as own:
            assert run_inside(own, end(plain._running().queue, [ending])).jobs
            step(make())
            own.rollback()
        step(make())
        assert (rows(connection), there.got) == ([], [])
        plain.cancel_job("acme", job)
        step(make())
    assert len(there.got) == 1


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nX-", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/", b"", b"HT"]
)
def test_a_receiver_that_drips_is_cut_off(
    plain: Scheduler,
    make: Make,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    answer: bytes,
) -> None:
    monkeypatch.setattr(module, "DEADLINE", 1.0)
    done = threading.Event()

    def drip(listening: socket.socket) -> None:
        with listening.accept()[0] as client:
            try:
                client.sendall(answer)
                while not done.wait(0.1):
                    if answer:
                        client.sendall(b"x")
            except OSError:
                done.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=(listening,), daemon=True)
        thread.start()
        ended(plain, f"http://127.0.0.1:{listening.getsockname()[1]}/")
        callbacks = make()
        callbacks.step()
        assert callbacks.stop(60)
        done.set()
        thread.join(60)
    ((_, _, over, error, _),) = rows(connection)
    assert not over
    assert "TimeoutError" in error


def test_what_is_answered_after_the_status_does_not_matter(
    plain: Scheduler, make: Make, connection: psycopg.Connection[Any]
) -> None:
    with receiver(lambda _: (200, {"Content-Length": "1000000"})) as there:
        ended(plain, there.url())
        step(make())
    assert rows(connection) == []


@pytest.mark.parametrize(
    "answer",
    [b"not http at all\r\n\r\n", b"HTTP/1.1 200\r\n" + b"a: b\r\n" * 200, b"HTTP/1.1 x\r\n"],
)
def test_nonsense_is_tried_again(
    plain: Scheduler, make: Make, connection: psycopg.Connection[Any], answer: bytes
) -> None:
    def nonsense(listening: socket.socket) -> None:
        with listening.accept()[0] as client:
            client.recv(100_000)
            client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=nonsense, args=(listening,), daemon=True)
        thread.start()
        ended(plain, f"http://127.0.0.1:{listening.getsockname()[1]}/")
        step(make())
        thread.join(60)
    ((_, _, over, error, _),) = rows(connection)
    assert (over, error is not None) == (False, True)


def test_nobody_is_told_without_a_secret(
    plain: Scheduler,
    make: Make,
    connection: psycopg.Connection[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with receiver() as there:
        callbacks = make(secret=None)
        step(callbacks)
        assert "callback_secret" not in caplog.text
        ended(plain, there.url())
        for _ in range(3):
            step(callbacks)
        assert caplog.text.count("callback_secret") == 1
        assert (len(rows(connection)), there.got) == (1, [])
        step(make())
    assert len(there.got) == 1


def test_a_job_that_the_ledger_no_longer_has_is_told_in_brief(
    plain: Scheduler, make: Make, connection: psycopg.Connection[Any]
) -> None:
    with receiver() as there:
        job = ended(plain, there.url())
        connection.execute("DELETE FROM job_history")
        step(make())
    said = json.loads(there.got[0].body)
    assert (said.pop("completed_at")[:2], said) == (
        "20",
        {"tenant": "acme", "id": str(job), "state": "cancelled"},
    )


def test_a_poisonous_one_is_given_up(
    plain: Scheduler, make: Make, connection: psycopg.Connection[Any]
) -> None:
    with receiver() as there:
        ended(plain, there.url())
        connection.execute("UPDATE job_callback SET attempt = 40")
        step(make())
    assert [row[2] for row in rows(connection)] == [True]
    assert there.got == []


def test_over_tls_the_certificate_is_checked(
    plain: Scheduler,
    make: Make,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    posting._tls.cache_clear()
    with receiver(tls=context) as there:
        ended(plain, there.url(host="localhost", scheme="https"))
        step(make())
        assert "CERTIFICATE_VERIFY_FAILED" in rows(connection)[0][3]
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        posting._tls.cache_clear()
        hasten(connection)
        step(make())
        assert rows(connection) == []
        assert there.got[0].headers["Host"] == f"localhost:{there.port}"
        ended(plain, there.url(host="127.0.0.1", scheme="https"))
        step(make())
        assert "doesn't match" in rows(connection)[0][3] or "mismatch" in rows(connection)[0][3]
    posting._tls.cache_clear()
    assert len(there.got) == 1


def test_how_answers_are_judged() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)

    def wish(text: str | None, status: int = 503) -> timedelta | None:
        failure = failure_of(Answer(status=status, location=None, retry_after=text), now=now)
        assert failure is not None
        assert failure.category == "temporary"
        return failure.retry_after

    assert wish("120") == timedelta(minutes=2)
    assert wish("Tue, 01 Jan 2030 00:05:00 GMT", 429) == timedelta(minutes=5)
    assert wish("Mon, 31 Dec 2029 00:05:00 GMT", 408) == timedelta(0)
    assert wish("9" * 500, 425) == timedelta(seconds=999_999_999)
    assert [wish(text) for text in (None, "", "soon", "-1", "1.5", "²")] == [None] * 6
    for status in (200, 201, 204, 299):
        assert failure_of(Answer(status=status, location=None, retry_after=None), now=now) is None


def test_a_receiver_checks_what_it_is_told() -> None:
    body = b'{"state": "completed"}'
    now = datetime.now(UTC)
    headers = {"scheduler-signature": sign(SECRET, body, at=now)}
    assert verify_callback(SECRET, headers, body) == {"state": "completed"}
    rotated = {"X": "y", "Scheduler-Signature": f"{headers['scheduler-signature']},v1=00,v2=é"}
    assert verify_callback(SECRET, rotated, body)["state"] == "completed"
    old = {"Scheduler-Signature": sign(SECRET, body, at=now - timedelta(minutes=6))}
    assert verify_callback(SECRET, old, body, tolerance="10m")
    wrong: list[tuple[str, dict[str, str], bytes, str]] = [
        ("another secret of somebody", headers, body, "not signed with this secret"),
        (SECRET, headers, body + b" ", "not signed with this secret"),
        (
            SECRET,
            {"Scheduler-Signature": headers["scheduler-signature"].replace("t=1", "t=2")},
            body,
            "not signed",
        ),
        (SECRET, {}, body, "no Scheduler-Signature header"),
        (SECRET, {"Scheduler-Signature": "v1=00"}, body, "must be like"),
        (SECRET, {"Scheduler-Signature": "t=1"}, body, "must be like"),
        (SECRET, {"Scheduler-Signature": "t=²,v1=00"}, body, "must be like"),
        (SECRET, {"Scheduler-Signature": "t=1,v1=é"}, body, "not signed"),
        (SECRET, old, body, "6m old, more than the tolerance of 5m"),
        (
            SECRET,
            {"Scheduler-Signature": sign(SECRET, body, at=now + timedelta(hours=1))},
            body,
            "ahead of this clock",
        ),
    ]
    for secret, given, said, message in wrong:
        with pytest.raises(InvalidSignature, match=message):
            verify_callback(secret, given, said)
    with pytest.raises(InvalidOption, match="bytes of the request"):
        verify_callback(SECRET, headers, body.decode())  # type: ignore[arg-type]


def test_the_secret_is_checked_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    for wrong in ("short", "x" * 15, 12345678901234567, b"x" * 20):
        with pytest.raises(
            ConfigError, match="callback_secret: must be a text of at least 16"
        ) as raised:
            Scheduler("postgresql://x", callback_secret=wrong)  # type: ignore[arg-type]
        assert str(wrong) not in str(raised.value)
    with pytest.raises(ConfigError, match="callback_private: must be True or False"):
        Scheduler("postgresql://x", callback_private="yes")  # type: ignore[arg-type]
    settings = Scheduler("postgresql://x", callback_secret=SECRET).settings
    assert SECRET not in repr(settings)
    assert settings.callback_secret == SECRET


@pytest.mark.parametrize(
    "url",
    [
        "http://user@host/",
        "https://user:password@host/",
        "http://@host/",
        "http://a\\@b/",
        "http://a:b@c:80",
    ],
)
def test_an_address_with_a_password_is_refused_at_submit(plain: Scheduler, url: str) -> None:
    with pytest.raises(InvalidOption, match="must not contain a user or password"):
        plain.submit("acme", "mail", callback_url=url)
    job = plain.submit("acme", "mail").id
    with pytest.raises(InvalidOption, match="must not contain a user or password"):
        plain.update_job("acme", job, callback_url=url)


@pytest.mark.parametrize(
    "url", ["http://host:99999/", "http://host:x/", "http://[::1/", "http://:80/", "https://?x"]
)
def test_an_address_that_names_no_host_is_refused_at_submit(plain: Scheduler, url: str) -> None:
    with pytest.raises(InvalidOption, match="callback_url must begin with"):
        plain.submit("acme", "mail", callback_url=url)


def test_odd_addresses_are_posted_to_as_they_are(
    plain: Scheduler, make: Make, connection: psycopg.Connection[Any]
) -> None:
    with receiver() as there:
        for path in ("", "?q=1", "/ü?ä=ö%20&b#part", "/a//b/../c;d=e"):
            ended(plain, there.url(path))
        step(make())
        assert rows(connection) == []
    assert sorted(there.paths()) == ["/", "/%C3%BC?%C3%A4=%C3%B6%20&b", "/?q=1", "/a//b/../c;d=e"]


def test_a_callback_has_category_code_and_first_line_of_error(
    dsn: str,
    schema: str,
    redis: Client,
    redis_server: EmbeddedRedis,
    make_worker: MakeWorker,
) -> None:
    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        if payload == "flaky" and ctx.attempt == 2:
            return
        if payload == "flaky":
            raise scheduler.TemporaryError("once", retry_after="10ms")
        raise scheduler.PermanentError("no such address\nsecond line", code="E7")

    make_worker()
    options: Any = {"redis": redis_server.url, "callback_secret": SECRET, "callback_private": True}
    with receiver() as there, Scheduler(dsn, schema=schema, **options) as ring:
        for payload in ("bad", "flaky"):
            url = there.url(f"/{payload}")
            ring.submit("acme", "mail", payload, queue="mail", callback_url=url)
        wait_for(lambda: len(there.got) == 2, "two callbacks")
    told = {each.path: json.loads(each.body) for each in there.got}
    bad, flaky = told["/bad"], told["/flaky"]
    assert (bad["state"], bad["category"], bad["code"]) == ("failed", "permanent", "E7")
    assert bad["error"] == "PermanentError: no such address"
    assert "Traceback" not in str(told)
    assert "File" not in str(told)
    assert flaky["state"] == "completed"
    assert not {"category", "code", "error"} & set(flaky)
