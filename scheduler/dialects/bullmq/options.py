"""Options of a job as BullMQ writes them, and as the ring means them: retries, and what is kept of
what has ended.
"""

from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from scheduler.errors import WireError
from scheduler.model.attempts import QueuedJob
from scheduler.model.durations import duration
from scheduler.model.policies import policy_of
from scheduler.model.retries import JITTER, RetryPolicy

SHORT = {
    "deduplication": "de",
    "failParentOnFailure": "fpof",
    "continueParentOnFailure": "cpof",
    "ignoreDependencyOnFailure": "idof",
    "removeDependencyOnFailure": "rdof",
    "keepLogs": "kl",
}
MILLISECOND = timedelta(milliseconds=1)
A_YEAR_US = 365 * 24 * 3600 * 1_000_000
KEEP_ALL = "-1:-1:1000"
BACKOFFS = {"constant": "fixed", "exponential": "exponential"}


class Rules(NamedTuple):
    """What the options of a job ask of whoever ends it: `keep_*` as count:age in seconds:most at
    once.
    """

    attempts: int = 1
    keep_completed: str = KEEP_ALL
    keep_failed: str = KEEP_ALL
    jitter: float = 0.0
    lifo: bool = False
    traces: int = -1  # of failed attempts, how many are kept; -1: all
    scheduler: Mapping[str, Any] | None = None


FED = Rules()


def short_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Write options as the hash of a job has them."""
    return {"attempts": 0, **{SHORT.get(name, name): value for name, value in options.items()}}


def keep(rule: object) -> str:
    """Read removeOnComplete or removeOnFail: True, how many to keep, or {count, age, limit}."""
    if rule is True:
        return "0:-1:1000"
    if isinstance(rule, Mapping):
        limit = _whole(rule.get("limit"), 0)
        count, age = _whole(rule.get("count"), -1), _whole(rule.get("age"), -1)
        return f"{count}:{age}:{limit if limit > 0 else 1000}"
    if isinstance(rule, int | float) and rule is not False:
        return f"{int(rule)}:-1:1000"
    return KEEP_ALL


def _whole(number: Any, otherwise: int) -> int:
    return otherwise if number is None else int(number)


@lru_cache(maxsize=1000)
def read_options(text: bytes) -> tuple[Mapping[str, Any], Rules]:
    """Read the options of a job that no ledger fed: its policy, and the rules of its end."""
    try:
        options = orjson.loads(text or b"{}")
        attempts = max(1, int(options.get("attempts") or 1))
        backoff = options.get("backoff") or {}
        if not isinstance(backoff, Mapping):
            backoff = {"type": "fixed", "delay": backoff}
        kind = str(backoff.get("type", "fixed"))
        policy = {
            "max_attempts": attempts,
            "backoff": "constant" if kind == "fixed" else kind,
            "initial_delay_us": int(
                min(A_YEAR_US, max(1.0, float(backoff.get("delay") or 0) * 1000))
            ),
            "max_delay_us": A_YEAR_US,
            "jitter": False,
            "execution_us": A_YEAR_US,
        }
        rules = Rules(
            attempts,
            keep(options.get("removeOnComplete")),
            keep(options.get("removeOnFail")),
            min(1.0, max(0.0, float(backoff.get("jitter") or 0))),
            bool(options.get("lifo")),
            _whole(options.get("stackTraceLimit"), -1),
            options if options.get("repeat") else None,
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise WireError(f"the options of a job cannot be read: {type(error).__name__}") from error
    return policy, rules


def fed_options(job: QueuedJob, kept: int) -> bytes:
    """Write the options of a job that a ledger feeds, which is kept until it is settled."""
    policy = None if job.policy is None else orjson.dumps(job.policy)
    options = _fed(policy, int(job.priority), False if job.installation else kept)
    own = b'{"jobId":"%b",' % job.id.encode()
    if job.trace is not None:
        own += b'"tm":%b,' % orjson.dumps(job.trace)
    return own + options


def trace_of(text: bytes) -> str | None:
    """Read the context of the span in which a job was added: `tm`, as the telemetry of BullMQ has
    it.
    """
    found = orjson.loads(text).get("tm") if b'"tm"' in text else None
    return found if isinstance(found, str) else None


@lru_cache(maxsize=1000)
def _fed(policy: bytes | None, priority: int, keeping: int) -> bytes:
    """Write what the options of many jobs share."""
    retry, _ = policy_of(None if policy is None else orjson.loads(policy))
    backoff: dict[str, Any] = {
        "type": BACKOFFS.get(retry.backoff, retry.backoff),
        "delay": duration(retry.initial_delay, name="initial_delay") // MILLISECOND,
    }
    if retry.jitter:
        backoff["jitter"] = JITTER
    options: dict[str, Any] = {
        "attempts": retry.max_attempts,
        "backoff": backoff,
        "removeOnComplete": keeping,
        "removeOnFail": keeping,
    }
    if priority:
        options["priority"] = priority
    return orjson.dumps(options)[1:]


def refusal(retry: RetryPolicy) -> str | None:
    """Say why a worker of BullMQ could not retry a job so; None: it can."""
    if retry.backoff not in BACKOFFS:
        known = " or ".join(f'"{each}"' for each in BACKOFFS)
        return (
            f"retry: backoff {retry.backoff!r} is unknown to workers of BullMQ; use {known}, or "
            "another dialect"
        )
    if retry.backoff == "exponential" and retry.multiplier != 2:
        return (
            "retry: workers of BullMQ double the delay: multiplier must be 2, not "
            f"{retry.multiplier!r}"
        )
    return None
