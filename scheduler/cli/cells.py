"""A job, a row of the ledger and an explanation, as JSON has them and as cells of a table."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import datetime

from rich.text import Text

from scheduler.cli.show import moment, until, visible
from scheduler.cli.view import STYLES, brief
from scheduler.model.definition import JobSpec
from scheduler.model.job import Explanation, HistoryEntry
from scheduler.model.outcomes import Outcome
from scheduler.store.job import JobRow

JOB_HEADS = ("TENANT", "JOB", "SCHEDULE", "NEXT", "AT", "LAST", "STATE")
JOB_FOLDS = {"SCHEDULE": 16, "AT": 12, "STATE": 10}
HISTORY_HEADS = ("AT", "JOB", "KIND", "OUTCOME", "TOOK", "START", "HOLDER", "MISSED", "WHY")
HISTORY_FOLDS = {"AT": 12, "MISSED": 12, "WHY": 20}
STATE_STYLES = {
    "paused": "warning",
    "running": "accent",
    "triggered": "accent",
    "foreign": "warning",
}


def job_facts(row: JobRow) -> dict[str, object]:
    """Say everything that a script may ask of a job."""
    spec = JobSpec.from_json(row.spec)
    return {
        "tenant": row.tenant,
        "job_id": row.job_id,
        "schedule": str(spec.schedule),
        "states": _states(row, spec),
        "next_run_at": row.next_run_at,
        "paused_at": row.paused_at,
        "trigger_at": row.trigger_at,
        "running_fire_at": row.running_fire_at,
        "holder": row.holder,
        "last_fire_at": row.ledger_at,
        "last_outcome": row.last_outcome,
        "last_finished_at": row.last_finished_at,
    }


def job_cells(row: JobRow, now: datetime) -> list[Text]:
    """Say what a person asks of a job first."""
    spec = JobSpec.from_json(row.spec)
    fire_at = None if row.paused_at else row.next_run_at
    states = Text(", ").join(
        Text(
            f"running on {visible(row.holder or '?')}" if state == "running" else state,
            style=STATE_STYLES.get(state, "quiet"),
        )
        for state in _states(row, spec)
    )
    return [
        Text(visible(row.tenant), style="accent"),
        Text(visible(row.job_id), style="bold"),
        Text(visible(str(spec.schedule))),
        Text(until(fire_at, now) if fire_at else "-"),
        Text(moment(fire_at) if fire_at else "-", style="quiet"),
        _outcome(Outcome(row.last_outcome) if row.last_outcome else None),
        states,
    ]


def history_facts(row: HistoryEntry) -> dict[str, object]:
    """Say everything that the ledger has in a row."""
    took = None if row.started_at is None else (row.finished_at - row.started_at).total_seconds()
    return {**asdict(row), "duration_seconds": took}


def history_cells(row: HistoryEntry) -> list[Text]:
    """Say the same in one line."""
    why = ": ".join(filter(None, (row.reason, _first_line(row.error))))
    missed = f"{row.missed_count} since {moment(row.missed_from)}" if row.missed_from else "-"
    return [
        Text(moment(row.at)),
        Text(visible(row.job_id), style="bold"),
        Text(row.kind, style="quiet"),
        _outcome(row.outcome),
        Text("-" if row.started_at is None else brief(row.finished_at - row.started_at)),
        Text(
            "-" if row.attempt is None else str(row.attempt),
            style="warning" if (row.attempt or 1) > 1 else "",
        ),
        Text(visible(row.holder or "-"), style="quiet"),
        Text(missed, style="warning" if row.missed_from else "quiet"),
        Text(visible(why)),
    ]


def made_visible(told: Explanation) -> Explanation:
    """Take from an explanation what could act on a terminal."""
    return replace(
        told,
        tenant=visible(told.tenant),
        job_id=visible(told.job_id),
        schedule=visible(told.schedule),
        holder=None if told.holder is None else visible(told.holder),
        why=visible(_first_line(told.why)) or None,
        notes=tuple(map(visible, told.notes)),
        runnable_on=tuple(map(visible, told.runnable_on)),
        app=None if told.app is None else visible(told.app),
        changes=tuple(
            replace(
                change,
                reason=visible(_first_line(change.reason)) or None,
                holder=visible(change.holder or ""),
            )
            for change in told.changes
        ),
    )


def explained(told: Explanation, now: datetime) -> Iterator[tuple[str, Text]]:
    """Go through an explanation, label by label."""
    yield "schedule", Text(told.schedule)
    if told.paused_at is not None:
        yield "paused", Text(f"since {moment(told.paused_at)}", style="warning")
    if told.running_fire_at is not None:
        yield (
            "running",
            Text(f"the fire of {moment(told.running_fire_at)} on {told.holder}", style="accent"),
        )
    if told.trigger_at is not None:
        yield "triggered", Text(f"{moment(told.trigger_at)}, not yet picked up", style="accent")
    if told.last_outcome is not None and told.last_fire_at is not None:
        why = Text(f": {told.why}" if told.why else "")
        yield "last", Text(f"{moment(told.last_fire_at)} ") + _outcome(told.last_outcome) + why
    yield (
        "runnable on",
        Text(", ".join(told.runnable_on) or "nobody", style="" if told.runnable_on else "failure"),
    )
    for number, fire in enumerate(told.next_fires):
        away = "" if told.paused_at else f" ({until(fire, now)})"
        yield "" if number else "next", Text(f"{fire:%a} {moment(fire)}{away}")
    for number, change in enumerate(told.changes):
        yield "" if number else "definition", Text(f"{moment(change.at)} {change}")
    for note in told.notes:
        yield "note", Text(note, style="warning")


def _states(row: JobRow, spec: JobSpec) -> list[str]:
    """Name what holds of a job; a paused one may still run, or have been triggered."""
    holds = {
        "foreign": spec.foreign,
        "paused": row.paused_at is not None,
        "running": row.running_fire_at is not None,
        "triggered": row.trigger_at is not None,
        "done": row.next_run_at is None and row.running_fire_at is None and row.trigger_at is None,
    }
    return [state for state, it_does in holds.items() if it_does] or ["waiting"]


def _outcome(outcome: Outcome | None) -> Text:
    return (
        Text("-", style="quiet")
        if outcome is None
        else Text(outcome, style=STYLES.get(outcome, "quiet"))
    )


def _first_line(text: str | None) -> str:
    return next(iter((text or "").splitlines()), "")
