"""Functions for processes of their own."""

from opentelemetry import trace

from scheduler import JobContext, RetryPolicy, RunContext

QUICK = RetryPolicy(max_attempts=3, initial_delay="1ms", jitter=False)


def far(ctx: JobContext, payload: object) -> str:
    """Say what is current, and submit another."""
    ctx.logger.warning("far away")
    ctx.submit("near", queue="mail")
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}-{context.span_id:016x}"


def sweep(ctx: RunContext) -> None:
    """Fail."""
    ctx.logger.warning("swept")
    raise ValueError("4012-8888")
