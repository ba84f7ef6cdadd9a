"""Spans, for apps that asked for them (`observe/traces.py`); until then OpenTelemetry is not even
imported.

A context is carried as BullMQ carries it, W3C's headers as one JSON text: through Postgres and
Redis, into processes.
"""

import contextlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from scheduler.errors import ConfigError

logger = logging.getLogger("scheduler")

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

LONGEST = 1000
FLUSH_MS = 3000
TRACEPARENT = "traceparent"
W3C = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


class Work:
    """A run or an attempt: a span that is begun here, and ended when the outcome is known."""

    def __init__(self, spans: "Spans", span: "Span") -> None:
        self._spans = spans
        self._span = span

    def current(self) -> contextlib.AbstractContextManager[object]:
        """Let its span be the one that is current; it goes on afterwards."""
        return self._spans.using(self._span)

    def ids(self) -> tuple[str, str] | None:
        """Name its trace and its span."""
        return ids_of(self._span)

    def end(self, outcome: str, error: str | None = None) -> None:
        """End it; `error`: the name of what was raised, whose text is in the ledger alone."""
        try:
            self._span.set_attribute("outcome", outcome)
            if error is not None:
                self._spans.fail(self._span, error)
            self._span.end()
        except Exception:
            logger.exception("a span could not be ended; what it was of is as it is")


class Spans:
    """OpenTelemetry, imported here: spans by a provider, or by the one that the app has set, or
    will set.
    """

    def __init__(self, provider: "TracerProvider | None" = None) -> None:
        try:
            from opentelemetry import trace  # noqa: PLC0415 - an extra
            from opentelemetry.context import Context  # noqa: PLC0415
            from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
                TraceContextTextMapPropagator,
            )
        except ImportError:
            raise ConfigError(
                "tracing: OpenTelemetry is missing; pip install 'singleton-scheduler[tracing]'"
            ) from None
        self._trace = trace
        self._provider = provider
        self._headers = TraceContextTextMapPropagator()
        self._nothing = Context()
        self._tracer = trace.get_tracer("scheduler", tracer_provider=provider)

    def begin(self, name: str, carried: str | None, attributes: Mapping[str, Any]) -> Work:
        """Begin a span, as a child of the one whose context is carried, or as the first of a
        trace.
        """
        kind = (
            self._trace.SpanKind.CONSUMER if attributes["queue"] else self._trace.SpanKind.INTERNAL
        )
        context = (
            self._nothing
            if carried is None
            else self._headers.extract(headers_of(carried), self._nothing)
        )
        try:
            span = self._tracer.start_span(
                name, context=context, kind=kind, attributes=dict(attributes)
            )
        except Exception:  # of a provider of anybody's: no job depends on it
            logger.exception("a span could not be begun; its job goes on without")
            span = self._trace.INVALID_SPAN
        return Work(self, span)

    def using(self, span: "Span") -> contextlib.AbstractContextManager[object]:
        """Let a span be current; what is raised meanwhile is not written into it, for its text may
        be anything.
        """
        return self._trace.use_span(span, record_exception=False, set_status_on_exception=False)

    def fail(self, span: "Span", error: str) -> None:
        """Mark a span as failed."""
        span.set_status(self._trace.StatusCode.ERROR, error)

    def current(self) -> "Span":
        """Say which span is current."""
        return self._trace.get_current_span()

    def carried(self) -> str | None:
        """Write down the context of the span that is current."""
        headers: dict[str, str] = {}
        self._headers.inject(headers)
        text = json.dumps(headers)
        if len(text) > LONGEST:  # what other vendors put beside it
            text = json.dumps({TRACEPARENT: headers[TRACEPARENT]})
        return text if headers else None

    def flush(self) -> None:
        """Have what was made sent, if its provider sends anything."""
        force = getattr(self._provider or self._trace.get_tracer_provider(), "force_flush", None)
        if force is not None:
            force(FLUSH_MS)

    def joined(self, carried: str) -> contextlib.AbstractContextManager[object]:
        """Let a span of another process be current."""
        return self.using(self._trace.get_current_span(self._headers.extract(headers_of(carried))))


class Tracing:
    """Whether spans are made in this process."""

    spans: Spans | None = None


def current() -> str | None:
    """Write down the context of the span that is current, to be carried along; None: there is
    none.
    """
    return None if Tracing.spans is None else Tracing.spans.carried()


def flush() -> None:
    """Have the spans of this process sent; one that ends by `os._exit` says so."""
    if Tracing.spans is not None:
        Tracing.spans.flush()


def ids() -> tuple[str, str] | None:
    """Name the trace and the span that are current; None: there is none."""
    return None if Tracing.spans is None else ids_of(Tracing.spans.current())


def ids_of(span: "Span") -> tuple[str, str] | None:
    """Name the trace of a span, and the span."""
    context = span.get_span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


@contextlib.contextmanager
def joined(carried: str | None) -> Iterator[None]:
    """Go on, in a child process, with what its parent does in a span."""
    if carried is None:
        yield
        return
    Tracing.spans = Tracing.spans or Spans()
    with Tracing.spans.joined(carried):
        yield


def headers_of(carried: str | None) -> dict[str, str]:
    """Read a context that is carried; what others wrote may be anything."""
    try:
        read = json.loads(carried or "{}")
        return {name: value for name, value in read.items() if isinstance(value, str)}
    except (ValueError, AttributeError, TypeError, RecursionError):
        return {}


def carried_ids(carried: str | None) -> tuple[str, str]:
    """Name the trace and the span of a context that is carried; empty if it has none."""
    found = W3C.fullmatch(headers_of(carried).get(TRACEPARENT, ""))
    return (found[1], found[2]) if found else ("", "")


def carried_of(trace_id: object, span_id: object) -> str | None:
    """Write the context of a span that others name by its ids alone; None: they name none."""
    if not (isinstance(trace_id, str) and isinstance(span_id, str) and trace_id and span_id):
        return None
    return json.dumps({TRACEPARENT: f"00-{trace_id}-{span_id}-01"})
