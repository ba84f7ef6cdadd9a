"""Job schedulers of BullMQ: whoever takes the newest job of one adds the next, or there is none. We
make none.
"""

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from scheduler.dialects.bullmq import wire
from scheduler.dialects.bullmq.keys import Keys
from scheduler.dialects.bullmq.wire import Taken
from scheduler.dialects.client import Client, script
from scheduler.errors import InvalidSchedule
from scheduler.log import keys as log_keys
from scheduler.model.cron import cron

logger = logging.getLogger("scheduler")


def iterate(client: Client, keys: Keys, taken: Taken, *, compat: str) -> None:
    """Add the job that comes after one that was taken, unless its scheduler has come to its end."""
    options, now_ms = {"attempts": 0, **(taken.rules.scheduler or {})}, time.time_ns() // 1_000_000
    try:
        repeat = dict(options.get("repeat") or {})
        count = int(repeat.get("count") or 0) + 1
        end = _ms(repeat.get("endDate"))
        if count > float(repeat.get("limit") or "inf") or (end is not None and now_ms > end):
            return
        due = (
            _by_pattern(repeat, max(now_ms, int(options.get("prevMillis") or 0)))
            if repeat.get("pattern")
            else ""
        )
    except (InvalidSchedule, ValueError, TypeError, OverflowError) as error:
        said = "queue %s: job scheduler %s ends here: %s"
        logger.warning(
            said,
            keys.queue,
            taken.scheduler,
            error,
            extra=log_keys(queue=keys.queue, job_id=taken.job.id),
        )
        return
    repeat.pop("immediately", None)
    options["repeat"] = {**repeat, "count": count}
    args = [compat, taken.scheduler, taken.job.id, due, orjson.dumps(options)]
    client.run(script("bullmq", "iterate"), [keys.meta], args)


def _by_pattern(repeat: Mapping[str, Any], now_ms: int) -> int:
    """Say when a pattern matches next; without a zone it is meant in UTC."""
    plan = cron(repeat["pattern"], repeat.get("tz") or "UTC", start_at=None, offset=timedelta())
    start = _ms(repeat.get("startDate"))
    following = plan.following(wire.instant_of(max(now_ms, start or 0)))
    if following is None:
        raise InvalidSchedule(f"{repeat['pattern']!r} never fires again")
    return max(now_ms, (following - wire.EPOCH) // wire.MILLISECOND)


def _ms(date: object) -> int | None:
    """Read an instant: in milliseconds, or as ISO 8601; without a zone it is meant in UTC."""
    if date is None or isinstance(date, int | float):
        return None if date is None else int(date)
    read = datetime.fromisoformat(str(date))
    return ((read if read.tzinfo else read.replace(tzinfo=UTC)) - wire.EPOCH) // wire.MILLISECOND
