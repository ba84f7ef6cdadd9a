"""What a submitted job is labelled with: queue, priority, tags and addresses, checked."""

import re
from collections.abc import Mapping
from enum import IntEnum
from urllib.parse import urlsplit

from scheduler.errors import InvalidName, InvalidOption
from scheduler.model.texts import name

MOST_TAGS = 50
LONGEST_KEY = 256
LONGEST_URL = 2000
_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_URL = re.compile(r"https?://[^\s/]+\S*", re.IGNORECASE)


class Priority(IntEnum):
    """Who goes first: the lower the number, the sooner."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3
    BULK = 4


def checked_queue(queue: object) -> str:
    """Check the name of a queue: it is part of keys in Redis."""
    if not isinstance(queue, str) or not _QUEUE.fullmatch(queue):
        raise InvalidName(
            f"queue must be 1 to 100 letters, digits, '_', '.' or '-', not {str(queue)[:120]!r}"
        )
    return queue


def checked_tags(tags: object) -> dict[str, str] | None:
    """Check user-defined labels: texts by texts."""
    if not tags:
        return None
    if not isinstance(tags, Mapping) or len(tags) > MOST_TAGS:
        raise InvalidOption(f"tags must be a dict of at most {MOST_TAGS} texts")
    return {
        name(key, what="a tag's name"): checked_text(value, f"tag {key!r}", 500)
        for key, value in tags.items()
    }


def checked_url(url: object) -> str | None:
    """Check the address that is called when a job ends."""
    if url is None:
        return None
    text = checked_text(url, "callback_url", LONGEST_URL)
    if not text.isprintable():
        raise InvalidOption("callback_url must not contain control characters")
    try:
        parts = urlsplit(text)
        named = _URL.fullmatch(text) and parts.hostname and parts.port != 0
    except ValueError:  # its port, or an address in brackets
        named = None
    if not named:
        raise InvalidOption(
            "callback_url must begin with http:// or https:// and name a host, and a port that "
            "exists"
        )
    if "@" in parts.netloc:
        raise InvalidOption(
            "callback_url must not contain a user or password: it is stored and shown; callbacks "
            "are signed, with the"
            " callback_secret of the scheduler, and scheduler.verify_callback() checks them"
        )
    return text


def checked_priority(priority: object) -> Priority:
    """Check a priority, given as one or as its number."""
    try:
        if isinstance(priority, bool):
            raise ValueError
        return Priority(priority)  # type: ignore[arg-type]
    except ValueError:
        names = ", ".join(f"{each.value} ({each.name})" for each in Priority)
        raise InvalidOption(f"priority must be one of {names}, not {priority!r}") from None


def checked_correlation(value: object) -> str | None:
    """Check the identifier that ties a job to a trace."""
    return None if value is None else checked_text(value, "correlation_id", LONGEST_KEY)


def checked_text(value: object, what: str, longest: int) -> str:
    """Check a text of a user: any Unicode without NUL. `what` names it in the error."""
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise InvalidOption(f"{what} must be a text of 1 to {longest} characters")
    if "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
        raise InvalidOption(f"{what} must not contain NUL or lone surrogates")
    return value
