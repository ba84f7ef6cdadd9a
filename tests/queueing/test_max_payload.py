"""`max_payload` applies to each way to submit or register a job."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from scheduler import JobContext, NewJob, Registration, Scheduler, State, handler
from scheduler.cli.main import cli
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import InvalidPayload
from scheduler.web.app import application
from scheduler.web.serve import Server
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for
from tests.web.conftest import API, TOKENS

LIMIT = 100
LARGE = "x" * LIMIT  # with its quotes it is larger
FITS = "x" * (LIMIT - 2)


@pytest.fixture
def ring(dsn: str, schema: str, redis: Client, redis_server: EmbeddedRedis) -> Iterator[Scheduler]:
    queues = {"mail": {"dialect": "standard"}}
    limited: dict[str, Any] = {"queues": queues, "max_payload": LIMIT}
    with Scheduler(dsn, schema=schema, redis=redis_server.url, **limited) as made:
        yield made


CALLS: dict[str, Callable[[Scheduler, Any], object]] = {
    "submit": lambda ring, payload: ring.submit("acme", "mail", payload),
    "submit_many": lambda ring, payload: ring.submit_many([NewJob("acme", "mail", payload)] * 1),
    "chain": lambda ring, payload: ring.chain("acme", [NewJob("acme", "mail", payload)]),
    "fan_out": lambda ring, payload: ring.fan_out("acme", [NewJob("acme", "mail", payload)]),
    "many parts": lambda ring, payload: ring.submit_many(
        [*(NewJob("acme", "mail") for _ in range(500)), NewJob("acme", "mail", payload)]
    ),
    "register": lambda ring, payload: ring.register(
        "acme", "x", every="1h", queue="mail", payload=payload
    ),
    "register_many": lambda ring, payload: ring.register_many(
        [
            Registration(
                tenant="acme", job_id="x", fn=None, every="1h", queue="mail", payload=payload
            )
        ]
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_max_payload_holds_for_every_call(ring: Scheduler, call: str) -> None:
    for payload in (LARGE, LARGE.encode() + b"x"):
        with pytest.raises(InvalidPayload, match="more than the 100"):
            CALLS[call](ring, payload)
    assert ring.find("acme").jobs == ()
    assert ring.jobs("acme") == []
    CALLS[call](ring, FITS)


def test_max_payload_holds_for_jobs_that_handlers_submit(
    ring: Scheduler, make_worker: MakeWorker
) -> None:
    children: dict[str, Any] = {}

    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: object) -> None:
        for each in (LARGE, FITS):
            children[each] = ctx.submit("child", each, queue="mail").id

    make_worker(queues=["mail"])
    made = ring.submit("acme", "mail", queue="mail")
    assert ring.wait("acme", made.id, timeout=60).state is State.COMPLETED
    refused = ring.get("acme", children[LARGE])
    assert (refused.state, refused.payload) == (State.FAILED, None)
    assert "more than the 100" in (refused.reason or "")
    assert not ring.get("acme", children[FITS]).state.terminal


def test_max_payload_holds_over_http(ring: Scheduler) -> None:
    server = Server(application(ring, tokens=TOKENS, rate_limit=0), "127.0.0.1", 0)
    server.start()
    try:
        headers = {"authorization": "Bearer secret of acme"}
        with httpx.Client(base_url=server.url + API, headers=headers) as client:
            for payload, status in ((LARGE, 422), (FITS, 201)):
                one = {"type": "mail", "payload": payload}
                assert client.post("/jobs", json=one).status_code == status
                assert client.post("/jobs/batch", json={"jobs": [one]}).status_code == status
    finally:
        server.stop()
    wait_for(lambda: len(ring.find("acme").jobs) == 2, "those that fit were submitted")


def test_max_payload_holds_on_the_command_line(dsn: str, schema: str, tmp_path: Path) -> None:
    with Scheduler(dsn, schema=schema):
        pass  # makes the schema
    settings = {"database": dsn, "schema": schema, "max_payload": LIMIT}
    file = tmp_path / "scheduler.yaml"
    file.write_text(json.dumps({"scheduler": settings}))
    for payload, code in ((LARGE, 1), (FITS, 0)):
        arguments = ["submit", "acme", "mail", "--payload", json.dumps(payload)]
        result = CliRunner().invoke(cli, [*arguments, "--config", str(file)])
        assert result.exit_code == code, result.output
        assert ("more than the 100" in result.output) is bool(code)
