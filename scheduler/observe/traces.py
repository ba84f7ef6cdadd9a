"""Where spans go: to the provider of the app, or by OTLP to an endpoint. Needs the extra
`tracing`.
"""

import os
from typing import TYPE_CHECKING

from scheduler.errors import ConfigError
from scheduler.trace import Spans, Tracing, flush

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

PATH = "/v1/traces"
SECONDS = 3  # for a batch: a collector that is away keeps no process from its end


def configure(provider: "TracerProvider | None" = None, *, endpoint: str | None = None) -> None:
    """Make a span of every run and every attempt from now on; they cost nothing before.

    provider: whose spans they are; by default those of the provider that the app has set, or will
    set, for the process. endpoint: the URL of a collector, if nobody has set a provider: one is
    made that sends everything there by OTLP over HTTP. An empty one is what OpenTelemetry's own
    environment variables say.
    """
    if endpoint is not None and provider is None:
        _send(endpoint)
    Tracing.spans = Spans(provider)


def stop() -> None:
    """Make no more spans; those that ended are sent."""
    flush()
    Tracing.spans = None


def _send(endpoint: str) -> None:
    """Make the provider of this process, unless the app has one."""
    try:
        from opentelemetry import trace  # noqa: PLC0415 - an extra
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            "tracing: OpenTelemetry is missing; pip install 'singleton-scheduler[tracing]'"
        ) from None
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    named = {} if "OTEL_SERVICE_NAME" in os.environ else {SERVICE_NAME: "scheduler"}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=_address(endpoint), timeout=SECONDS))
    )
    trace.set_tracer_provider(provider)


def _address(endpoint: str) -> str | None:
    """Complete the address of a collector: localhost:4318 is http://localhost:4318/v1/traces."""
    if not endpoint:
        return None
    url = endpoint if "://" in endpoint else f"http://{endpoint}"
    return url if url.endswith(PATH) else url.rstrip("/") + PATH
