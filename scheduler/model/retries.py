"""When a failed attempt is tried again: the policy, its delays, and the one decision (sections 5
and 8).
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from scheduler.errors import InvalidOption
from scheduler.model.durations import duration
from scheduler.model.failures import Category, Failure
from scheduler.model.texts import name

BUILT_IN = ("constant", "linear", "exponential")
MOST_ATTEMPTS = 100
JITTER = 0.1

Backoff = Callable[[int, timedelta, timedelta], timedelta]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a job is tried, and how long it waits between attempts.

    backoff: "constant", "linear", "exponential", or a name given to `@scheduler.backoff` in the
    worker. jitter: each delay varies by 10 %. retry_timeout, retry_system: whether a timeout, or
    the loss of a worker, is tried again.
    """

    max_attempts: int = 3
    backoff: str = "exponential"
    initial_delay: timedelta | str = timedelta(seconds=1)
    max_delay: timedelta | str = timedelta(hours=1)
    multiplier: float = 2.0
    jitter: bool = True
    retry_timeout: bool = True
    retry_system: bool = True

    def checked(self) -> "RetryPolicy":
        """Check every part; raises with the name of the wrong one."""
        attempts: object = self.max_attempts
        if (
            isinstance(attempts, bool)
            or not isinstance(attempts, int)
            or not 1 <= attempts <= MOST_ATTEMPTS
        ):
            raise InvalidOption(
                f"retry: max_attempts must be a number from 1 to {MOST_ATTEMPTS}, not {attempts!r}"
            )
        name(self.backoff, what="retry: backoff")
        factor: object = self.multiplier
        if (
            isinstance(factor, bool)
            or not isinstance(factor, int | float)
            or not 1 <= factor <= 1000
        ):
            raise InvalidOption(
                f"retry: multiplier must be a number from 1 to 1000, not {factor!r}"
            )
        for switch in ("jitter", "retry_timeout", "retry_system"):
            if not isinstance(getattr(self, switch), bool):
                raise InvalidOption(
                    f"retry: {switch} must be True or False, not {getattr(self, switch)!r}"
                )
        return replace(
            self,
            multiplier=float(self.multiplier),
            initial_delay=duration(self.initial_delay, name="retry: initial_delay"),
            max_delay=duration(self.max_delay, name="retry: max_delay"),
        )

    def delay(
        self, attempt: int, *, rng: random.Random, backoffs: Mapping[str, Backoff] | None = None
    ) -> timedelta:
        """Return how long to wait after a failed attempt, counted from 1; never longer than
        `max_delay`, also if the number is too large for a timedelta.
        """
        first = duration(self.initial_delay, name="retry: initial_delay")
        longest = duration(self.max_delay, name="retry: max_delay")
        custom = (backoffs or {}).get(self.backoff)
        try:
            if custom is not None:
                waits = custom(attempt, first, longest)
            elif self.backoff == "constant":
                waits = first
            elif self.backoff == "linear":
                waits = first * attempt
            else:  # also a name that this worker does not know
                waits = first * min(self.multiplier ** (attempt - 1), longest / first + 1)
        except OverflowError:
            waits = longest
        waits = min(max(waits, timedelta(0)), longest)
        return min(waits * rng.uniform(1 - JITTER, 1 + JITTER), longest) if self.jitter else waits


class Attempted(Protocol):
    """What the decision needs to know of a job. charged: its attempts that count, this one too."""

    @property
    def charged(self) -> int: ...
    @property
    def retry(self) -> RetryPolicy: ...
    @property
    def expires_at(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after a delay: RETRYING."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class Fail:
    """It will not succeed: FAILED."""


@dataclass(frozen=True, slots=True)
class Bury:
    """No attempt is left: DEAD_LETTER."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Somebody wanted it to end: CANCELLED."""


Decision = Retry | Fail | Bury | Cancel


def decide(
    job: Attempted,
    failure: Failure,
    *,
    now: datetime,
    rng: random.Random,
    backoffs: Mapping[str, Backoff] | None = None,
) -> Decision:
    """Decide what follows a failed attempt; the only place that knows the rules."""
    policy = job.retry
    match failure.category:
        case Category.CANCELLED:
            return (
                Cancel() if now < job.expires_at else Bury()
            )  # its lifetime ended it, not somebody
        case Category.PERMANENT:
            return Fail()
        case Category.TIMEOUT if not policy.retry_timeout:
            return Fail()
        case Category.SYSTEM if not policy.retry_system:
            return Fail()
        case _:
            if job.charged >= policy.max_attempts or now >= job.expires_at:
                return Bury()
    if failure.retry_after is None:
        waits = policy.delay(job.charged, rng=rng, backoffs=backoffs)
    else:
        waits = min(failure.retry_after, duration(policy.max_delay, name="retry: max_delay"))
    return Retry(max(timedelta(0), min(waits, job.expires_at - now)))
