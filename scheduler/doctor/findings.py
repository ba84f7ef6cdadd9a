"""Checks and what they find: how bad it is, what was seen, what it means, and the cure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from scheduler.errors import SchedulerError
from scheduler.model.durations import brief

if TYPE_CHECKING:
    from scheduler.doctor.patient import Patient

SHOWN = 3


class Severity(StrEnum):
    """How bad it is: something stands still, something will, or something one should know."""

    FAULT = "fault"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that a check saw."""

    check: str
    severity: Severity
    seen: str
    means: str
    cure: str


Look = Callable[["Patient"], Iterator[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check; it is left out where one of `unless` has found something, since nothing could be
    seen then.
    """

    name: str
    severity: Severity
    means: str
    cure: str
    unless: tuple[str, ...]
    look: Look


CHECKS: dict[str, Check] = {}
UNSEEN = "unseen"


def check(
    name: str, severity: Severity, *, means: str, cure: str, unless: Sequence[str] = ()
) -> Callable[[Look], Look]:
    """Make a check of a function that yields what it sees."""

    def add(look: Look) -> Look:
        CHECKS[name] = Check(
            name=name, severity=severity, means=means, cure=cure, unless=(*unless,), look=look
        )
        return look

    return add


def findings(patient: "Patient") -> Iterator[Finding]:
    """Go through all checks, in their order."""
    ill: set[str] = set() if patient.has_redis else {"redis-away"}
    for each in CHECKS.values():
        if ill & set(each.unless):
            continue
        try:
            for seen in each.look(patient):
                ill.add(each.name)
                yield Finding(
                    check=each.name,
                    severity=each.severity,
                    seen=seen,
                    means=each.means,
                    cure=each.cure,
                )
        except SchedulerError as error:
            yield Finding(
                check=UNSEEN,
                severity=Severity.NOTE,
                seen=f"{each.name}: {error}",
                means="This could not be looked at, so it may be well or not.",
                cure="Give the user the right to read it, or look again when the server has more "
                "time.",
            )


def roughly(span: timedelta) -> str:
    """Write a span to the second."""
    return brief(timedelta(seconds=round(span.total_seconds())))


def some(names: Sequence[str]) -> str:
    """Name a few of many."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
