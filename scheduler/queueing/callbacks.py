"""Callbacks: tell the `callback_url` of a job that it has ended, signed, until it says that it
knows.

Each is claimed by moving its `due_at` on, posted without a transaction, and noted. Whoever dies in
between leaves it to be claimed again after the lease: a receiver may be told twice, with the same
`Scheduler-Delivery`, but never at once.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any
from uuid import uuid5

import orjson

from scheduler.errors import StoreUnavailable
from scheduler.log import Keys, keys
from scheduler.model.failures import Category, Failure
from scheduler.model.retries import Retry, RetryPolicy, decide
from scheduler.model.texts import storable
from scheduler.queueing.ledger import Ledger
from scheduler.queueing.posting import Answer, Deadline, Refused, post
from scheduler.queueing.signing import DELIVERY, SIGNATURE, sign
from scheduler.store.job_callback import Callback, CallbackTable, claimed
from scheduler.store.steps import Statement

logger = logging.getLogger("scheduler")

AT_ONCE = 4
EVERY = 1.0
UNSIGNED_EVERY = 30.0
DEADLINE = 15.0
LEASE = timedelta(seconds=60)
POLICY = RetryPolicy(max_attempts=40)
LIFETIME = timedelta(days=1)
KEEP = timedelta(days=1)
LONGEST_ERROR = 500
FORGET_EVERY = 600.0
PASSING = (408, 425, 429)


@dataclass(frozen=True, slots=True)
class Told:
    """One attempt to tell, as the retry decision sees it."""

    charged: int
    expires_at: datetime
    retry: RetryPolicy = POLICY


class Callbacks:
    """Posts what is due, a few at once. `wake` is called when there is room for another."""

    def __init__(
        self,
        ledger: Ledger,
        table: CallbackTable,
        *,
        now: Callable[[], datetime],
        secret: str | None,
        private: bool,
    ) -> None:
        self._ledger = ledger
        self._table = table
        self._now = now
        self._secret = secret
        self._private = private
        self._rng = random.Random()  # noqa: S311 - spreads retries, protects nothing
        self._condition = threading.Condition()
        self._posting = 0
        self._forgotten = 0.0
        self._warned = False
        self.wake: Callable[[], None] = lambda: None

    def step(self) -> float:
        """Begin to post what is due, as far as there is room; return when to look again."""
        if self._secret is None:
            return self._unsigned()
        began = time.monotonic()
        if not self._forgotten or began - self._forgotten > FORGET_EVERY:
            self._ledger.rows(self._table.forget(keep=KEEP))
            self._forgotten = began
        with self._condition:
            room = AT_ONCE - self._posting
        rows = self._ledger.rows(self._table.claim(limit=room, lease=LEASE)) if room else []
        for row in rows:
            arguments = (claimed(row), self._secret, Deadline(began + DEADLINE))
            thread = threading.Thread(
                target=self._call, args=arguments, name="scheduler-callback", daemon=True
            )
            with self._condition:
                self._posting += 1
            try:
                thread.start()
            except RuntimeError:
                self._ended()
                raise
        return EVERY

    def stop(self, timeout: float) -> bool:
        """Wait for what is being posted; say whether all of it was noted."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._posting, timeout)

    def _unsigned(self) -> float:
        if not self._warned and self._ledger.rows(self._table.waiting()):
            self._warned = True
            logger.warning(
                "callbacks wait: nobody is told without a signature; give Scheduler a "
                "callback_secret"
            )
        return UNSIGNED_EVERY

    def _call(self, callback: Callback, secret: str, deadline: Deadline) -> None:
        try:
            self._ledger.rows(self._tell(callback, secret, deadline))
        except StoreUnavailable as error:
            said = "callback of job %s: %s; it is due again after its lease"
            logger.warning(said, callback.job_id, error, extra=about(callback))
        except Exception:
            said = "callback of job %s: it is due again after its lease"
            logger.exception(said, callback.job_id, extra=about(callback))
        finally:
            self._ended()

    def _ended(self) -> None:
        with self._condition:
            self._posting -= 1
            self._condition.notify_all()
        self.wake()

    def _tell(self, callback: Callback, secret: str, deadline: Deadline) -> Statement:
        """Tell the receiver; return what is to be noted of it."""
        if (
            callback.attempt > POLICY.max_attempts
        ):  # whoever made the last attempt did not live to note it
            return self._give_up(callback, "its last attempt was never noted")
        body = body_of(callback)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "singleton-scheduler",
            DELIVERY: str(uuid5(callback.job_id, "callback")),
            SIGNATURE: sign(secret, body, at=self._now()),
        }
        try:
            answer = post(callback.url, headers, body, private=self._private, deadline=deadline)
        except Refused as error:
            return self._give_up(callback, str(error))
        except (OSError, HTTPException) as error:
            failure = Failure(
                category=Category.TEMPORARY, message=f"{type(error).__name__}: {error}"
            )
        else:
            found = failure_of(answer, now=self._now())
            if found is None:
                return self._table.told(callback)
            failure = found
        told = Told(callback.attempt, callback.created_at + LIFETIME)
        decision = decide(told, failure, now=self._now(), rng=self._rng)
        if not isinstance(decision, Retry):
            return self._give_up(callback, failure.message)
        logger.info(
            "callback of job %s: %s; trying again",
            callback.job_id,
            failure.message,
            extra=about(callback),
        )
        return self._table.again(
            callback, delay=decision.delay, error=storable(failure.message, 2000)
        )

    def _give_up(self, callback: Callback, reason: str) -> Statement:
        said = f"given up at attempt {callback.attempt}: {reason}"
        named = callback.job_id, callback.tenant
        logger.warning("callback of job %s of %s: %s", *named, said, extra=about(callback))
        return self._table.give_up(callback, error=storable(said, 2000))


def about(callback: Callback) -> Keys:
    """Name the job in a line of the log."""
    return keys(job_id=str(callback.job_id), namespace=callback.tenant)


def body_of(callback: Callback) -> bytes:
    """Write the body of the request, without the payload and without a traceback."""
    said: dict[str, Any] = {
        "tenant": callback.tenant,
        "id": callback.job_id,
        "state": callback.state,
        "completed_at": callback.created_at,
    }
    if callback.type is not None:
        labels = callback.labels or {}
        said["type"], said["queue"] = callback.type, callback.queue
        said["attempt"], said["reason"] = callback.job_attempt, callback.reason
        said["correlation_id"], said["tags"] = (
            labels.get("correlation_id"),
            labels.get("tags") or {},
        )
    if callback.error is not None:
        said["error"] = storable(callback.error.partition("\n")[0], LONGEST_ERROR)
        failed = callback.failed or {}
        said |= {name: failed[name] for name in ("category", "code") if name in failed}
    if callback.result is not None:
        said["result"] = orjson.Fragment(callback.result)
    return orjson.dumps(said, option=orjson.OPT_UTC_Z)


def failure_of(answer: Answer, *, now: datetime) -> Failure | None:
    """Judge an answer: None if the receiver knows."""
    status = answer.status
    if 200 <= status < 300:
        return None
    message = f"the receiver answered {status}"
    if 300 <= status < 400:
        where = f" to {answer.location[:200]}" if answer.location else ""
        return Failure(
            category=Category.PERMANENT,
            message=f"{message}, a redirect{where}, which is not followed",
        )
    if 400 <= status < 500 and status not in PASSING:
        return Failure(category=Category.PERMANENT, message=message)
    return Failure(
        category=Category.TEMPORARY, message=message, retry_after=_wish(answer.retry_after, now)
    )


def _wish(text: str | None, now: datetime) -> timedelta | None:
    """Read a Retry-After header: seconds, or a date. What makes no sense is no wish."""
    if not text:
        return None
    try:
        if text.isascii() and text.strip().isdigit():
            return timedelta(seconds=int(text[:9]))
        moment = parsedate_to_datetime(text)
        return max(timedelta(0), (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now)
    except (ValueError, OverflowError):
        return None
