"""/healthz, /readyz and /metrics of real processes, also when servers are away; several processes
on one port.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from scheduler import Scheduler, Worker, handler
from scheduler.dialects.client import Client
from scheduler.embedded.postgres import EmbeddedPostgres
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import ConfigError
from scheduler.observe.health import Pages, Server
from scheduler.observe.metrics import PATIENCE
from scheduler.observe.serving import SAMPLE, Serving
from scheduler.service import Service
from tests.observe.scrapes import Scrape, get, needs_promtool, promtool, ready
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for

APP = """
import scheduler

@scheduler.handler("mail", queue="mail")
def mail(ctx, payload):
    return payload

def register(instance):
    for _ in range(20):
        instance.submit("acme", "mail", queue="mail")
"""


@dataclass(frozen=True)
class Role:
    address: str
    process: int

    def children(self) -> set[int]:
        return set(
            map(int, Path(f"/proc/{self.process}/task/{self.process}/children").read_text().split())
        )


Start = Callable[..., Role]


STARTING = 60.0  # seconds that a process may take to start on a machine that is busy


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def start(tmp_path: Path, redis_server: EmbeddedRedis, dsn: str, schema: str) -> Iterator[Start]:
    """Start a role, and return where it is asked how it is."""
    (tmp_path / "app.py").write_text(APP)
    started: list[subprocess.Popen[bytes]] = []

    def start(role: str, *arguments: str, port: int | None = None, **environment: str) -> Role:
        port = port or free_port()
        host = environment.get("SCHEDULER_OBSERVABILITY_HOST", "127.0.0.1")
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SCHEDULER_", "DATABASE_"))
        }
        given = {
            "DATABASE_URL": dsn,
            "SCHEDULER_SCHEMA": schema,
            "OBSERVABILITY_METRICS_PORT": str(port),
        }
        command = [sys.executable, "-m", "scheduler", "run", f"--role={role}", *arguments]
        environment = clean | given | {"REDIS_ADDR": redis_server.url} | environment
        with (tmp_path / f"said-{len(started)}").open("wb") as said:
            started.append(
                subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=said, stdout=said)
            )
        return Role(f"http://{host}:{port}", started[-1].pid)

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
    for process in started:
        process.wait(timeout=30)


def answers(address: str, path: str = "/healthz") -> bool:
    try:
        return get(address, path)[0] == 200
    except OSError:
        return False


@pytest.mark.parametrize("role", ["scheduler", "worker", "all"])
def test_every_role_says_how_it_is(start: Start, redis: object, role: str) -> None:
    address = start(role, "--app=app:register").address
    wait_for(lambda: answers(address, "/readyz"), "it is ready", timeout=STARTING)
    assert get(address, "/healthz") == (200, "ok\n")
    assert ready(address) == (200, [])
    assert get(address, "/elsewhere")[0] == 404
    if role == "all":
        wait_for(
            lambda: Scrape.of(address).value("jobs_completed_total", queue="mail") == 20, "all ran"
        )
    wanted = (
        {"loop"}
        if role == "scheduler"
        else {"worker-keep"}
        if role == "worker"
        else {"loop", "worker-keep"}
    )
    wait_for(lambda: Scrape.of(address).labels("part") >= wanted, "its parts are seen")
    assert Scrape.of(address).labels("part") & {"loop", "worker-keep"} == wanted


def test_a_producer_says_what_it_queued(start: Start, redis: object, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(30):
        (tmp_path / "data" / f"{number}.txt").touch()
    address = start("producer", PRODUCER_RATE_LIMIT_PER_SEC="10").address
    wait_for(lambda: answers(address), "it answers", timeout=STARTING)
    wait_for(
        lambda: (Scrape.of(address).value("jobs_produced_total", queue="files") or 0) >= 10,
        "some are queued",
    )


def test_a_producer_without_redis_is_not_ready(start: Start, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").touch()
    address = start("producer", REDIS_ADDR=f"127.0.0.1:{free_port()}").address
    wait_for(lambda: answers(address), "it answers", timeout=STARTING)
    wait_for(lambda: ready(address)[0] == 503, "it is not ready")
    assert "Redis" in ready(address)[1][0]


def test_without_the_extra_there_are_no_metrics_and_the_page_says_the_cure() -> None:
    pages = Pages(list, None)
    status, _, body = pages.answer("/metrics")
    assert status == 501
    assert b"singleton-scheduler[metrics]" in body
    assert pages.answer("/readyz")[0] == 200


@needs_promtool
def test_several_processes_are_one_to_whoever_asks(start: Start, redis: object) -> None:
    workers = start(
        "worker", "--app=app", SCHEDULER_WORKER_PROCESSES="2", SCHEDULER_WORKER_GRACE="1s"
    )
    address = workers.address
    wait_for(lambda: answers(address, "/readyz"), "both are heard of", timeout=STARTING)
    start("scheduler", "--app=app:register")
    wait_for(lambda: _completed(address) == 20, "all ran")
    scrape = Scrape.of(address)
    promtool("check", "metrics", given=scrape.text)
    assert scrape.value("circuit_breaker_state", queue="mail") == 0
    before = workers.children()
    os.kill(max(before), signal.SIGKILL)
    wait_for(lambda: len(workers.children() - before) == 1, "another is started")
    wait_for(lambda: answers(address, "/readyz"), "both are heard of again")
    assert _completed(address) == 20, "what the one counted that is gone still counts"


def _completed(address: str) -> float | None:
    return Scrape.of(address).value("jobs_completed_total", queue="mail")


@pytest.mark.parametrize(
    ("role", "processes"), [("scheduler", "1"), ("worker", "1"), ("worker", "2"), ("all", "1")]
)
def test_health_port_binds_to_observability_host(
    start: Start, redis: object, role: str, processes: str
) -> None:
    port = free_port()
    address = start(
        role,
        "--app=app:register",
        port=port,
        SCHEDULER_OBSERVABILITY_HOST="127.0.0.2",
        SCHEDULER_WORKER_PROCESSES=processes,
    ).address
    wait_for(lambda: answers(address, "/readyz"), "it is ready", timeout=STARTING)
    assert address == f"http://127.0.0.2:{port}"
    assert not answers(f"http://127.0.0.1:{port}"), "it listens on observability.host only"


def test_producer_health_port_binds_to_observability_host(
    start: Start, redis: object, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    for number in range(30):
        (tmp_path / "data" / f"{number}.txt").touch()
    role = start(
        "producer", SCHEDULER_OBSERVABILITY_HOST="127.0.0.2", PRODUCER_RATE_LIMIT_PER_SEC="1"
    )
    wait_for(lambda: answers(role.address), "it answers", timeout=STARTING)


def test_health_port_on_every_interface_answers_on_each() -> None:
    server = Server("0.0.0.0", 0, Pages(list, None).answer)
    try:
        port = server.address.rpartition(":")[2]
        for host in ("127.0.0.1", "127.0.0.2"):
            assert get(f"http://{host}:{port}", "/healthz") == (200, "ok\n")
    finally:
        server.stop()


def test_health_port_takes_an_ipv6_host() -> None:
    try:
        server = Server("::1", 0, Pages(list, None).answer)
    except ConfigError:
        pytest.skip("this machine has no IPv6")
    try:
        assert server.address.startswith("http://[::1]:")
        assert get(server.address, "/healthz") == (200, "ok\n")
    finally:
        server.stop()


def test_health_port_in_use_is_named_with_its_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        with pytest.raises(ConfigError) as raised:
            Server("127.0.0.2", port, Pages(list, None).answer)
    assert str(raised.value).startswith(
        f"observability.metrics_port: cannot listen on 127.0.0.2:{port}"
    )


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_health_host_that_cannot_be_bound_is_named(host: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Server(host, 0, Pages(list, None).answer)
    assert str(raised.value).startswith(f"observability.host: cannot listen on {host}:0")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/elsewhere"])
def test_health_port_answers_head_without_a_body(path: str) -> None:
    server = Server("127.0.0.1", 0, Pages(list, None).answer)
    try:
        answer = httpx.head(server.address + path, timeout=60)
        assert (answer.status_code, answer.content) == (get(server.address, path)[0], b"")
    finally:
        server.stop()


def test_a_port_that_is_taken_keeps_nobody_from_work(
    start: Start, redis: object, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        start("worker", "--app=app", port=int(taken.getsockname()[1]))
        said = tmp_path / "said-0"
        wait_for(
            lambda: "observability.metrics_port: cannot listen on 127.0.0.1" in said.read_text(),
            "it says so",
            timeout=STARTING,
        )
        wait_for(lambda: "queues mail" in said.read_text(), "it works")


def test_redis_that_is_away_is_the_reason(make_worker: MakeWorker) -> None:
    @handler("mail", queue="mail")
    def mail(_: object, __: object) -> None: ...

    with EmbeddedRedis() as own:
        worker = Worker(own.url, lease="2s")
        worker.start()
        with Serving("127.0.0.1", 0, ["mail"], SAMPLE) as serving, ExitStack() as stack:
            stack.callback(worker.stop, grace=0.0)
            serving.watch(worker)
            address = serving.address or ""
            wait_for(lambda: ready(address) == (200, []), "it is ready")
            own.stop()
            wait_for(lambda: ready(address)[0] == 503, "it is not ready")
            assert any("Redis" in reason for reason in ready(address)[1])
            assert get(address, "/healthz")[0] == 200
            assert Scrape.of(address).value("queue_length", queue="mail") is None
            assert Scrape.of(address).value("circuit_breaker_state", queue="mail") == 0


def test_a_redis_that_hangs_keeps_nobody_from_the_rest_of_the_metrics(
    make_worker: MakeWorker,
) -> None:
    @handler("mail", queue="mail")
    def mail(_: object, __: object) -> None: ...

    with EmbeddedRedis() as own, ExitStack() as stack:
        client = Client(own.url)
        pid = client.call("INFO", "server")["process_id"]
        client.close()
        worker = Worker(f"{own.url}?timeout=2s&max_retries=9")
        worker.start()
        stack.callback(worker.stop, grace=0.0)
        with Serving("127.0.0.1", 0, ["mail"], SAMPLE) as serving:
            serving.watch(worker)
            address = serving.address or ""
            wait_for(
                lambda: Scrape.of(address).value("queue_length", queue="mail") == 0, "it is seen"
            )
            os.kill(pid, signal.SIGSTOP)
            stack.callback(os.kill, pid, signal.SIGCONT)
            wait_for(
                lambda: Scrape.of(address).value("queue_length", queue="mail") is None, "it hangs"
            )
            begun = time.monotonic()
            assert Scrape.of(address).value("jobs_completed_total", queue="mail") == 0
            assert "worker-keep" in Scrape.of(address).labels("part")
            assert time.monotonic() - begun < 2 * PATIENCE + 10
            os.kill(pid, signal.SIGCONT)
            wait_for(
                lambda: Scrape.of(address).value("queue_length", queue="mail") == 0,
                "it is seen again",
            )


def test_postgres_that_is_away_is_the_reason(schema: str) -> None:
    with (
        EmbeddedPostgres(durable=False) as own,
        Scheduler(own.dsn, schema=schema) as scheduler,
        Serving("127.0.0.1", 0, [], SAMPLE) as serving,
    ):
        serving.watch(scheduler)
        address = serving.address or ""
        wait_for(lambda: ready(address) == (200, []), "it is ready")
        own.halt(mode="immediate")
        wait_for(lambda: ready(address)[0] == 503, "it is not ready")
        assert any("Postgres" in reason for reason in ready(address)[1])
        own.resume()
        wait_for(lambda: ready(address) == (200, []), "it is ready again", timeout=40)


def test_a_part_that_is_starting_is_in_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service("part", lambda: None)
    start, seen = threading.Thread.start, []

    def asked_before(thread: threading.Thread) -> None:
        seen.append(service.trouble)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", asked_before)
    service.start()
    assert seen == [None]
    assert service.stop(timeout=5)
    assert service.trouble is None


def test_a_part_whose_thread_has_ended_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[object] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    service = Service("part", sys.exit)
    service.start()
    wait_for(lambda: ended, "its thread has ended")
    assert service.trouble == "its thread has ended"
