"""What processes of roles write and send: lines as JSON, one when they are asked to end, and spans
to a collector.
"""

import gzip
import json
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from scheduler.dialects.client import Client
from tests.cli.test_run import ENTRY, Start, Started, put, start
from tests.support.waiting import wait_for

__all__ = ["start"]
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(ThreadingHTTPServer):
    """Takes spans by OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taking)
        self.spans: list[Any] = []
        self.services: set[str] = set()


class Taking(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/traces":
            for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.server.services |= {
                    named.value.string_value
                    for named in each.resource.attributes
                    if named.key == "service.name"
                }
                self.server.spans += [span for scope in each.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def lines(process: Started) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.said().splitlines()]


def test_a_role_writes_json_and_says_when_it_is_asked_to_end(start: Start, redis: Client) -> None:
    put(redis, "a.txt")
    worker = start("run", "--role=worker", "--app", "app")
    worker.wait_for("file /data/a.txt")
    assert worker.ended(signal.SIGTERM) == 0
    first, last = [
        line for line in lines(worker) if "worker_id" in line
    ]  # others may have its port
    assert (first["level"], first["worker_id"]) == ("info", last["worker_id"])
    assert last["msg"] == f"worker {last['worker_id']}: SIGTERM received, stopping"
    assert last.keys() == {"level", "ts", "msg", "worker_id"}


def test_a_scheduler_says_when_it_is_asked_to_end(start: Start, dsn: str, schema: str) -> None:
    away = {"REDIS_ADDR": "127.0.0.1:9"}
    process = start(
        "run", "--role=scheduler", SCHEDULER_DATABASE=dsn, SCHEDULER_SCHEMA=schema, **away
    )
    process.wait_to_say("role scheduler: started")
    assert process.ended(signal.SIGTERM) == 0
    first, *_ = said = [line["msg"] for line in lines(process)]
    assert first.endswith("; waiting for it"), "what is said before anything runs is JSON, too"
    assert "role scheduler: ends" in said


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_role_sends_its_spans_to_the_collector(
    start: Start, redis: Client, collector: Collector, processes: str
) -> None:
    entry = ENTRY.replace('"trace_id":"","span_id":""', f'"trace_id":"{TRACE}","span_id":"{SPAN}"')
    redis.call("LPUSH", "jobqueue:low_priority", entry % ("a.txt", "a.txt"))
    worker = start(
        "run",
        "--role=worker",
        "--app",
        "app",
        SCHEDULER_WORKER_PROCESSES=processes,
        OBSERVABILITY_TRACING_ENABLED="true",
        OBSERVABILITY_TRACING_ENDPOINT=f"127.0.0.1:{collector.server_port}",
        OTEL_METRICS_EXPORTER="none",
    )
    worker.wait_for("file /data/a.txt")
    assert worker.ended(signal.SIGTERM) == 0
    wait_for(lambda: collector.spans, "the span")
    [span] = collector.spans
    assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == (
        "attempt file",
        TRACE,
        SPAN,
    )
    assert {
        each.key: each.value.string_value for each in span.attributes if each.key != "attempt"
    } == {
        "queue": "files",
        "job_id": "a.txt",
        "type": "file",
        "namespace": "",
        "outcome": "completed",
    }
    assert collector.services == {"scheduler"}


def test_a_collector_that_is_away_keeps_nobody_from_ending(
    start: Start, redis: Client, collector: Collector
) -> None:
    put(redis, "a.txt")
    worker = start(
        "run",
        "--role=worker",
        "--app",
        "app",
        OBSERVABILITY_TRACING_ENABLED="true",
        OBSERVABILITY_TRACING_ENDPOINT="http://127.0.0.1:9",
    )
    worker.wait_for("file /data/a.txt")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(timeout=10) == 0
