"""What is logged: a text, and keys of a closed list. How lines are written is the app's to say, or
`observe/logs.py`'s.

Lines of the scheduler's own have no payload and no secret in them, whoever writes them: of an error
that is not ours only its name, and where it was raised; of a URL neither who we are nor its query.
"""

import logging
import re
import traceback
from collections.abc import Mapping, MutableMapping
from typing import Any, TypedDict, Unpack

from scheduler.errors import InvalidOption, SchedulerError

SECRETS = (
    (
        re.compile(r"(://)\S*@"),
        r"\1***@",
    ),  # to the last: a password may have slashes and more of these
    (re.compile(r"(://[^\s?]*\?)[^\s'\"]+"), r"\1***"),
    (re.compile(r"(password=)('(?:[^'\\]|\\.)*'|\S+)"), r"\1***"),
)
MOST_FRAMES = 15
OWN = ("scheduler", "scheduler.web")

logger = logging.getLogger("scheduler")


class Keys(TypedDict, total=False):
    """All that a line may have beside level, ts and msg; docs/logs.md says what each is."""

    trace_id: str
    span_id: str
    job_id: str
    queue: str
    worker_id: str
    request_id: str
    namespace: str
    fire_at: str
    attempt: int
    fence: int
    type: str


KEYS = tuple(Keys.__annotations__)


def keys(**given: Unpack[Keys]) -> Keys:
    """Say what a line is about, as its `extra`; a key that is not of the list is refused, before
    anything is logged.
    """
    for key in given:
        if key not in KEYS:
            raise InvalidOption(
                f"a log line has no key {key!r}, which could bring a payload into it; there are "
                f"{KEYS}"
            )
    return given


class JobLogger(logging.LoggerAdapter["logging.Logger"]):
    """A logger whose lines say of which job they are. What they get as `extra` is refused unless it
    is of the list.
    """

    extra: Mapping[str, Any]

    def __init__(self, **given: Unpack[Keys]) -> None:
        super().__init__(logging.getLogger("scheduler.job"), keys(**given))

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Put the keys to a line."""
        kwargs["extra"] = {**self.extra, **keys(**(kwargs.get("extra") or {}))}
        return msg, kwargs


class Discreet(logging.Filter):
    """Takes out of lines what nobody should read there; none is held back."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Write the error of a line as `places` does, and hide secrets in its text."""
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text, record.exc_info = places(record.exc_info[1]), None
        said = record.getMessage()
        if (hidden := without_secrets(said)) != said:
            record.msg, record.args = hidden, ()
        return True


def without_secrets(text: str) -> str:
    """Hide the names, passwords and queries of URLs, and the passwords of DSNs."""
    for secret, hidden in SECRETS:
        text = secret.sub(hidden, text)
    return text


def places(error: BaseException) -> str:
    """Say which errors led to this one, and where each was raised; a text only of those that are
    ours.
    """
    lines = []
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        text = f": {cause}" if isinstance(cause, SchedulerError) else ""
        lines.append(f"{type(cause).__qualname__}{without_secrets(text)}")
        frames = traceback.extract_tb(cause.__traceback__)[-MOST_FRAMES:]
        lines += [f"  {frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\n".join(lines)


for name in OWN:
    logging.getLogger(name).addFilter(Discreet())
