"""How pages write moments, spans and numbers."""

from datetime import UTC, datetime

from scheduler.model.breaker import BreakerState
from scheduler.model.outcomes import Outcome
from scheduler.model.states import State

TONES = {
    "good": (Outcome.SUCCESS, Outcome.COMPLETED, BreakerState.CLOSED.word),
    "bad": (Outcome.FAILED, Outcome.CRASHED, Outcome.DEAD_LETTER, BreakerState.OPEN.word),
    "warn": (Outcome.TIMEOUT, State.RETRYING, "late", "paused", BreakerState.HALF_OPEN.word),
    "busy": (State.RUNNING,),
    "next": (Outcome.QUEUED, State.SCHEDULED, State.DELAYED, State.PENDING),
}
WORST = ("bad", "warn", "next", "good", "calm")
_TONE = {str(word): tone for tone, words in TONES.items() for word in words}
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def tone(word: object) -> str:
    """Say in which colour an outcome or a state is shown."""
    return _TONE.get(str(word), "calm")


def words(value: object) -> str:
    """Write an outcome or a state for people."""
    return str(value).replace("_", " ")


def moment(value: datetime | None) -> str:
    """Write a moment in full."""
    return "" if value is None else f"{value.astimezone(UTC):%a %Y-%m-%d %H:%M:%S} UTC"


def clock(value: datetime) -> str:
    """Write the time of day; of another day, the day too."""
    utc = value.astimezone(UTC)
    time = utc.isoformat()[11:19]
    return time if utc.date() == datetime.now(UTC).date() else f"{utc:%d %b} {time}"


def relative(value: datetime) -> str:
    """Say how long ago a moment was, or in how long it is."""
    seconds = (value - datetime.now(UTC)).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"


def span(seconds: float | None) -> str:
    """Write a span of time in its two largest units, or less exactly if it is short."""
    if seconds is None:
        return ""
    if seconds < 0.001:
        return "0 ms" if seconds <= 0 else "<1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole, parts = round(seconds), []
    for size, unit in _UNITS:
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts)


def number(value: float) -> str:
    """Write a number with its thousands."""
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """Write how many there are a minute."""
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"


def first_line(text: str | None) -> str:
    """Cut an error to what a list has room for."""
    lines = (text or "").strip().splitlines()
    return lines[0][:200] if lines else ""


FILTERS = {
    "tone": tone,
    "words": words,
    "moment": moment,
    "clock": clock,
    "relative": relative,
    "span": span,
    "number": number,
    "rate": rate,
    "first_line": first_line,
}
