"""Traces: one from the request that submits to the handler, through Postgres and Redis, in every
dialect.
"""

import logging
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode

from scheduler import JobContext, NewJob, PermanentError, RunContext, Scheduler, conveyor, handler
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.model.body import Executor
from scheduler.observe import traces
from scheduler.trace import Tracing, carried_ids, current
from tests.conftest import MakeScheduler
from tests.observe import bodies
from tests.observe.lines import Lines, lines
from tests.observe.spans import Seen, names, seen
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for

__all__ = ["lines", "seen"]
DIALECTS = ["standard", "bullmq", "conveyor"]


def is_child(span: ReadableSpan, parent: ReadableSpan | trace.Span) -> bool:
    assert span.parent is not None
    return span.parent.span_id == names(parent).span_id


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_request_its_job_and_what_that_submits_are_one_trace(
    ring: Scheduler, make_worker: MakeWorker, seen: Seen
) -> None:
    @handler("receipt", queue="mail")
    def receipt(ctx: JobContext, payload: object) -> None:
        with trace.get_tracer("app", tracer_provider=seen.provider).start_as_current_span("smtp"):
            ctx.submit("copy", queue="mail")

    @handler("copy", queue="mail")
    async def copy(ctx: JobContext, payload: object) -> None:
        with seen.tracer.start_as_current_span("archive"):
            pass

    make_worker()
    with seen.tracer.start_as_current_span("POST /orders") as request:
        submitted = ring.submit("acme", "receipt", {"order": 7}, queue="mail")
    [copied] = seen.wait_for("attempt copy")
    [attempt], [inner], [archive] = seen.of("attempt receipt"), seen.of("smtp"), seen.of("archive")
    assert is_child(attempt, request)
    assert is_child(inner, attempt)
    assert is_child(copied, inner)
    assert is_child(archive, copied)
    assert {names(each).trace_id for each in (attempt, inner, copied, archive)} == {
        names(request).trace_id
    }
    assert attempt.kind is SpanKind.CONSUMER
    assert dict(attempt.attributes or {}) == {
        "queue": "mail",
        "job_id": str(submitted.id),
        "outcome": "completed",
        "type": "receipt",
        "namespace": "acme",
        "attempt": 1,
    }
    assert attempt.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_job_that_was_submitted_outside_of_a_span_begins_a_trace(
    ring: Scheduler,
    make_worker: MakeWorker,
    seen: Seen,
    connection: psycopg.Connection[tuple[object]],
) -> None:
    @handler("receipt", queue="mail")
    def receipt(ctx: JobContext, payload: object) -> None:
        pass

    ring.submit_many(
        [NewJob("acme", "receipt", queue="mail"), NewJob("acme", "receipt", queue="mail")]
    )
    assert connection.execute("SELECT trace FROM job_queue").fetchall() == [(None,), (None,)]
    make_worker()
    first, second = seen.wait_for("attempt receipt", 2)
    assert first.parent is second.parent is None
    assert names(first).trace_id != names(second).trace_id


def test_each_attempt_is_a_span_with_its_outcome_and_without_the_text_of_its_error(
    ring: Scheduler, make_worker: MakeWorker, seen: Seen
) -> None:
    @handler("receipt", queue="mail")
    def receipt(ctx: JobContext, payload: object) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("4012-8888")
        raise PermanentError("4012-8888")

    make_worker()
    with seen.tracer.start_as_current_span("request") as request:
        ring.submit_many(
            [NewJob("acme", "receipt", queue="mail", retry=bodies.QUICK) for _ in range(2)]
        )
    spans = seen.wait_for("attempt receipt", 4)
    assert all(is_child(span, request) for span in spans)
    outcomes = sorted((span.attributes or {})["outcome"] for span in spans)  # type: ignore[type-var]
    assert outcomes == ["failed", "failed", "retrying", "retrying"]
    assert {span.status.description for span in spans} == {"ConnectionError", "PermanentError"}
    assert {span.status.status_code for span in spans} == {StatusCode.ERROR}
    assert not [span for span in spans if "4012" in span.to_json()]


def test_a_handler_in_a_process_of_its_own_goes_on_with_the_trace(
    ring: Scheduler, make_worker: MakeWorker, seen: Seen
) -> None:
    handler("far", queue="mail", executor="process")(bodies.far)

    @handler("near", queue="mail")
    def near(ctx: JobContext, payload: object) -> None:
        pass

    make_worker()
    with seen.tracer.start_as_current_span("request") as request:
        far = ring.submit("acme", "far", queue="mail")
    [near_attempt] = seen.wait_for("attempt near")
    [far_attempt] = seen.of("attempt far")
    assert is_child(far_attempt, request)
    assert is_child(near_attempt, far_attempt)
    context = names(far_attempt)
    found = ring.wait("acme", far.id, timeout="20s").result
    assert found == f"{context.trace_id:032x}-{context.span_id:016x}", (
        "OpenTelemetry says the same in the child"
    )


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_run_is_a_span(
    make_scheduler: MakeScheduler, seen: Seen, lines: Lines, executor: Executor
) -> None:
    make_scheduler().register("acme", "sweep", bodies.sweep, executor=executor)
    [run] = seen.wait_for("run sweep")
    attributes = dict(run.attributes or {})
    assert (attributes["queue"], attributes["job_id"], attributes["outcome"]) == (
        "",
        "sweep",
        "failed",
    )
    assert (attributes["namespace"], attributes["attempt"]) == ("acme", 1)
    assert (run.kind, run.parent) == (SpanKind.INTERNAL, None)
    assert run.status.description == "ValueError"
    [line] = lines.about(msg="swept", job_id="sweep", namespace="acme", fence=1, attempt=1)
    assert line["span_id"] == f"{names(run).span_id:016x}"


def test_lines_of_the_log_name_the_span_in_which_they_are_written(
    ring: Scheduler, make_worker: MakeWorker, seen: Seen, lines: Lines
) -> None:
    handler("far", queue="mail", executor="process")(bodies.far)

    @handler("near", queue="mail")
    async def near(ctx: JobContext, payload: object) -> None:
        ctx.logger.info("near by")
        logging.getLogger("scheduler.job").info("by another logger")
        raise PermanentError("no")

    worker = make_worker()
    submitted = ring.submit("acme", "far", queue="mail")
    [near_attempt], [far_attempt] = seen.wait_for("attempt near"), seen.of("attempt far")
    wait_for(lambda: lines.about(level="warning", type="near"), "its failure is said")
    [far] = lines.about(msg="far away")
    assert (far["job_id"], far["queue"], far["namespace"], far["attempt"]) == (
        str(submitted.id),
        "mail",
        "acme",
        1,
    )
    [failed] = lines.about(level="warning", type="near")
    assert failed["worker_id"] == worker.name
    said = (far, *lines.about(msg="near by"), *lines.about(msg="by another logger"), failed)
    for line, span in zip(
        said, (far_attempt, near_attempt, near_attempt, near_attempt), strict=True
    ):
        context = names(span)
        assert (line["trace_id"], line["span_id"]) == (
            f"{context.trace_id:032x}",
            f"{context.span_id:016x}",
        )


def test_what_a_run_submits_is_its_child(
    ring: Scheduler, make_worker: MakeWorker, seen: Seen
) -> None:
    @handler("receipt", queue="mail")
    def receipt(ctx: JobContext, payload: object) -> None:
        pass

    async def body(ctx: RunContext) -> None:
        await ring.asubmit("acme", "receipt", queue="mail")

    make_worker()
    ring.register("acme", "nightly", body)
    [attempt] = seen.wait_for("attempt receipt")
    [run] = seen.wait_for("run nightly")
    assert is_child(attempt, run)


def test_a_job_that_is_retried_by_hand_is_of_the_trace_of_who_asked(
    ring: Scheduler, make_worker: MakeWorker, seen: Seen
) -> None:
    @handler("receipt", queue="mail")
    def receipt(ctx: JobContext, payload: object) -> None:
        raise PermanentError("no")

    make_worker()
    failed = ring.submit("acme", "receipt", queue="mail")
    ring.wait("acme", failed.id, timeout="20s")
    with seen.tracer.start_as_current_span("retry") as asked:
        ring.retry_job("acme", failed.id)
    _, again = seen.wait_for("attempt receipt", 2)
    assert is_child(again, asked)


def test_an_entry_of_a_list_names_the_trace_as_the_original_does(
    dsn: str, schema: str, redis_server: EmbeddedRedis, redis: Client, seen: Seen
) -> None:
    lists = {"nobody": {"dialect": "reliable"}}
    with (
        Scheduler(dsn, schema=schema, redis=redis_server.url, queues=lists) as scheduler,
        seen.tracer.start_as_current_span("request") as request,
    ):
        scheduler.submit("acme", "receipt", queue="nobody")
        wait_for(lambda: redis.call("LLEN", "jobqueue:{nobody}:normal"), "it is fed")
    [entry] = redis.call("LRANGE", "jobqueue:{nobody}:normal", 0, -1)
    context = request.get_span_context()
    assert (
        f'"trace_id":"{context.trace_id:032x}","span_id":"{context.span_id:016x}"' in entry.decode()
    )


@pytest.mark.parametrize("dialect", ["conveyor"])
def test_what_a_client_of_conveyor_adds_is_of_its_trace(
    redis: Client, redis_server: EmbeddedRedis, make_worker: MakeWorker, seen: Seen
) -> None:
    @handler("receipt", queue="mail")
    def receipt(ctx: JobContext, payload: object) -> None:
        pass

    make_worker()
    with (
        conveyor.Client(redis_server.url) as client,
        seen.tracer.start_as_current_span("request") as request,
    ):
        client.add({}, type="receipt", queue="mail")
    [attempt] = seen.wait_for("attempt receipt")
    assert is_child(attempt, request)


def test_a_context_that_others_wrote_may_be_anything() -> None:
    assert carried_ids('{"traceparent": "00-\\"-x-01"}') == ("", "")
    for carried in ("[]", "{", "7", '{"traceparent": 7}', '{"traceparent": "no"}', "[" * 100_000):
        assert carried_ids(carried) == ("", "")
        traces.configure()
        try:
            assert Tracing.spans is not None
            Tracing.spans.begin("attempt", carried, {"queue": "mail"}).end("completed")
        finally:
            traces.stop()


def test_without_tracing_nothing_is_imported_and_nothing_is_carried() -> None:
    code = (
        "import sys, redis; before = set(sys.modules);"  # which has a use for it of its own
        "import scheduler, scheduler.observe.traces; from scheduler.trace import current;"
        "print(current(), [each for each in set(sys.modules) - before if each.startswith('opentelemetry')])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd="/"
    )
    assert run.stdout.strip() == "None []"


class Broken(SpanProcessor):
    def on_start(self, span: Span, parent_context: object = None) -> None:
        if span.name.endswith("begun"):
            raise OSError("disk full")

    def on_end(self, span: ReadableSpan) -> None:
        raise OSError("disk full")


def test_a_provider_that_fails_harms_no_job(
    ring: Scheduler, make_worker: MakeWorker, seen: Seen
) -> None:
    @handler("ended", queue="mail")
    @handler("begun", queue="mail")
    def receipt(ctx: JobContext, payload: object) -> int:
        return 7

    seen.provider.add_span_processor(Broken())
    make_worker(concurrency=1)
    jobs = [ring.submit("acme", kind, queue="mail") for kind in ("begun", "ended", "begun")]
    assert [ring.wait("acme", job.id, timeout="20s").result for job in jobs] == [7, 7, 7]


def test_spans_that_are_current_are_carried_only_while_tracing_is_on(seen: Seen) -> None:
    with seen.tracer.start_as_current_span("request"):
        assert current() is not None
        traces.stop()
        assert current() is None


def test_the_documents_name_every_attribute() -> None:
    text = (Path(__file__).parents[2] / "docs" / "traces.md").read_text()
    names = ("queue", "job_id", "outcome", "type", "namespace", "attempt", "fire_at", "fence")
    assert [name for name in names if f"`{name}`" not in text] == []
