"""The spans that were made, in memory."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, SpanContext

from scheduler.observe import traces
from tests.support.waiting import wait_for


class Seen:
    """The spans that have ended; each must have what every span has."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("web")

    def of(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def wait_for(self, name: str, count: int = 1) -> list[ReadableSpan]:
        wait_for(lambda: len(self.of(name)) >= count, f"{count} spans {name!r}")
        return self.of(name)

    def check(self) -> None:
        for span in self._exporter.get_finished_spans():
            if (
                span.instrumentation_scope is not None
                and span.instrumentation_scope.name == "scheduler"
            ):
                assert {"queue", "job_id", "outcome"} <= dict(span.attributes or {}).keys(), (
                    span.name
                )


@pytest.fixture
def seen() -> Iterator[Seen]:
    made = Seen()
    traces.configure(made.provider)
    yield made
    traces.stop()
    made.check()


def names(span: ReadableSpan | Span) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context
