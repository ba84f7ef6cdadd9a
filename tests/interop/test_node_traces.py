"""One trace through a queue of BullMQ, whoever is on its other side: Node, with its own telemetry,
or we.
"""

import pytest

from scheduler import JobContext, Scheduler, Worker, bullmq, handler
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.trace import carried_ids
from tests.interop.conftest import StartPeer
from tests.interop.peers import Peer
from tests.observe.spans import Seen, names, seen
from tests.support.waiting import wait_for

__all__ = ["seen"]
BULLMQ = {"mail": {"dialect": "bullmq"}}
TRACEPARENT = '{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","tracestate":"acme=1"}'


@pytest.fixture(params=[5, 6])
def traced(request: pytest.FixtureRequest, start_node: StartPeer) -> Peer:
    """BullMQ on Node, with telemetry."""
    peer = start_node(request.param)
    peer.call("trace")
    return peer


def test_what_is_submitted_here_a_worker_on_node_runs_within_its_trace(
    dsn: str, schema: str, traced: Peer, redis_server: EmbeddedRedis, seen: Seen
) -> None:
    traced.work("mail")
    with Scheduler(dsn, schema=schema, redis=redis_server.url, queues=BULLMQ) as made:
        with seen.tracer.start_as_current_span("request") as request:
            submitted = made.submit("acme", "mail", {}, queue="mail")
        made.wait("acme", submitted.id, timeout="20s")
    context = names(request)
    assert carried_ids(traced.carried[str(submitted.id)]) == (
        f"{context.trace_id:032x}",
        f"{context.span_id:016x}",
    )


def test_what_the_client_adds_a_worker_on_node_runs_within_its_trace(
    traced: Peer, redis_server: EmbeddedRedis, seen: Seen
) -> None:
    with (
        bullmq.Queue("mail", redis_server.url) as queue,
        seen.tracer.start_as_current_span("request") as request,
    ):
        added = queue.add("mail", {})
    traced.work("mail")
    wait_for(lambda: added in traced.carried, "it ran")
    context = names(request)
    assert carried_ids(traced.carried[added]) == (
        f"{context.trace_id:032x}",
        f"{context.span_id:016x}",
    )


def test_what_an_app_on_node_adds_is_run_here_within_its_trace(
    traced: Peer, redis_server: EmbeddedRedis, seen: Seen
) -> None:
    @handler("mail", queue="mail")
    def mail(ctx: JobContext, payload: object) -> None:
        pass

    added = traced.call("traced", queue="mail", job="mail", data={}, carried=TRACEPARENT)
    worker = Worker(redis_server.url, ["mail"], dialect="bullmq")
    worker.start()
    try:
        [span] = seen.wait_for("attempt mail")
    finally:
        worker.stop()
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == carried_ids(
        TRACEPARENT
    )
    assert span.parent.trace_state.get("acme") == "1"
    assert (span.attributes or {})["job_id"] == added
