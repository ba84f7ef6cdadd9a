"""Queues, what is in them and who works at them, as JSON has it, and as cells of tables."""

import base64
import json
from collections.abc import Mapping
from datetime import datetime, timedelta

from rich.text import Text

from scheduler.cli.show import moment, visible
from scheduler.cli.view import brief
from scheduler.model.labels import Priority
from scheduler.model.queues import QueueEntry, QueueStats, Totals
from scheduler.model.states import State
from scheduler.model.workers import WorkerInfo, WorkerQueue

QUEUE_HEADS = (
    "QUEUE",
    "DIALECT",
    "WAITING",
    "BY PRIORITY",
    "RUNNING",
    "RETRYING",
    "UNSETTLED",
    "DEAD",
    "READY",
    "OLDEST",
    "PENDING",
    "WORKERS",
    "BREAKER",
    "STATE",
)
QUEUE_FOLDS = {"QUEUE": 10, "BY PRIORITY": 12, "STATE": 12}
ENTRY_HEADS = ("ID", "TENANT", "TYPE", "PRIORITY", "ATTEMPTS", "SINCE", "WHY")
ENTRY_FOLDS = {"TENANT": 8, "TYPE": 10, "SINCE": 12, "WHY": 20, "PAYLOAD": 20}
TOTAL_HEADS = ("QUEUE", "COMPLETED", "FAILED", "DEAD LETTER", "CANCELLED", "PER SECOND")
ENDS = (State.COMPLETED, State.FAILED, State.DEAD_LETTER, State.CANCELLED)
KEY_HEADS = ("QUEUE", "KEY", "TYPE", "SIZE")
WORKER_HEADS = (
    "WORKER",
    "KIND",
    "HOST",
    "PID",
    "UP",
    "HEARTBEAT",
    "CONCURRENCY",
    "QUEUE",
    "HOLDS",
    "BREAKER",
    "JOBS",
)
WORKER_FOLDS = {"WORKER": 12, "HOST": 8, "QUEUE": 10, "BREAKER": 12, "JOBS": 20}
NAMED = 3


def queue_facts(stats: QueueStats) -> dict[str, object]:
    """Say everything of a queue."""
    return {
        "queue": stats.name,
        "dialect": stats.dialect,
        "paused": stats.paused,
        "paused_at": stats.paused_at,
        "waiting": {level.name.lower(): count for level, count in stats.waiting.items()},
        "running": stats.running,
        "retrying": stats.retrying,
        "unsettled": stats.unsettled,
        "dead": stats.dead,
        "ready": stats.ready,
        "oldest": stats.oldest,
        "pending": stats.pending,
        "workers": stats.workers,
        "breakers": {state.word: count for state, count in stats.breakers.items()},
        "unhandled": dict(stats.unhandled),
        "error": stats.error,
    }


def queue_cells(stats: QueueStats, now: datetime) -> list[Text]:
    """Say how a queue is in one line."""
    levels = [f"{level.name.lower()} {count}" for level, count in stats.waiting.items() if count]
    dead = Text(str(stats.dead), style="failure" if stats.dead else "")
    return [
        Text(visible(stats.name), style="bold"),
        Text(stats.dialect, style="quiet"),
        Text(str(sum(stats.waiting.values()))),
        Text(", ".join(levels) or "-", style="quiet"),
        *(Text(str(count)) for count in (stats.running, stats.retrying, stats.unsettled)),
        dead,
        Text(str(stats.ready)),
        Text("-" if stats.oldest is None else brief(now - stats.oldest)),
        Text(str(stats.pending)),
        Text("-" if stats.workers is None else str(stats.workers)),
        _breakers(stats),
        _state(stats),
    ]


def _breakers(stats: QueueStats) -> Text:
    """Say how circuit breakers are, the worst first; of how many workers, where they differ."""
    found = sorted(stats.breakers.items(), reverse=True)
    if not found:
        return Text("-", style="quiet")
    said = [state.word if len(found) == 1 else f"{state.word} {count}" for state, count in found]
    return Text(", ".join(said), style="failure" if found[0][0] else "")


def _state(stats: QueueStats) -> Text:
    if stats.error is not None:
        return Text(visible(stats.error), style="failure")
    if stats.paused:
        return Text(
            "paused" if stats.paused_at is None else f"paused since {moment(stats.paused_at)}",
            style="accent",
        )
    if stats.unhandled and stats.workers:
        types = [f"{visible(name)} {count}" for name, count in stats.unhandled.items()]
        more = [f"{len(types) - NAMED} more types"] if len(types) > NAMED else []
        return Text(f"no handler: {', '.join([*types[:NAMED], *more])}", style="failure")
    return Text("-", style="quiet")


def entry_facts(entry: QueueEntry, *, with_payload: bool) -> dict[str, object]:
    """Say everything of a job in a queue; its payload only if it is asked for."""
    facts: dict[str, object] = {
        "id": entry.id,
        "tenant": entry.tenant,
        "type": entry.type,
        "priority": entry.priority.name.lower(),
        "attempts": entry.attempts,
        "created_at": entry.created_at,
        "died_at": entry.died_at,
        "reason": entry.reason,
    }
    return {**facts, "payload": _plain(entry.payload)} if with_payload else facts


def entry_cells(entry: QueueEntry, *, with_payload: bool) -> list[Text]:
    """Say what a job in a queue is in one line."""
    since = entry.died_at or entry.created_at
    cells = [
        Text(visible(entry.id), style="bold"),
        Text(visible(entry.tenant or "-")),
        Text(visible(entry.type or "-")),
        Text(entry.priority.name.lower(), style="quiet"),
        Text(str(entry.attempts)),
        Text("-" if since is None else moment(since), style="quiet"),
        Text(visible((entry.reason or "-").strip().splitlines()[-1][:200])),
    ]
    return [*cells, Text(visible(json.dumps(_plain(entry.payload))))] if with_payload else cells


def _plain(payload: object) -> object:
    if not isinstance(payload, bytes):
        return payload
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(payload).decode()}


def worker_cells(worker: WorkerInfo, now: datetime) -> list[list[Text]]:
    """Say how a worker is, a line for each of its queues."""
    own = [
        Text(visible(worker.name), style="bold"),
        Text(worker.kind, style="quiet"),
        Text(_said(worker.host)),
        Text(_said(worker.pid)),
        Text(_age(worker.started_at, now)),
        Text(_age(worker.seen_at, now)),
        Text(_said(worker.concurrency)),
    ]
    if not worker.queues:
        return [[*own, Text("-"), Text(_said(worker.holds)), Text("-"), Text("-")]]
    return [
        [
            *own,
            Text(visible(at.name)),
            Text(_said(at.holds)),
            _breaker(at),
            Text(_held(at), style="quiet"),
        ]
        for at in worker.queues
    ]


def _said(value: object) -> str:
    return "-" if value is None else visible(str(value))


def _age(instant: datetime | None, now: datetime) -> str:
    return (
        "-" if instant is None else brief(max(now - instant, timedelta(0)))
    )  # it is of Redis's clock


def _breaker(at: WorkerQueue) -> Text:
    if at.breaker is None:
        return Text("-", style="quiet")
    until = "" if at.breaker_until is None else f" until {moment(at.breaker_until)}"
    return Text(f"{at.breaker.word}{until}", style="failure" if at.breaker else "")


def _held(at: WorkerQueue) -> str:
    """Name some of the jobs that a worker holds, as `get` wants them."""
    named = [
        visible(f"{job.tenant or ''} {job.id} ({job.type})".strip()) for job in at.jobs[:NAMED]
    ]
    more = max(at.holds or 0, len(at.jobs)) - len(named)
    overdue = [f"{len(at.overdue)} overdue"] if at.overdue else []
    return ", ".join([*named, *([f"{more} more"] if named and more > 0 else []), *overdue]) or "-"


def total_facts(totals: Totals) -> dict[str, dict[str, object]]:
    """Say how jobs ended, by queue."""
    return {
        queue: {
            **{state.value: count for state, count in states.items()},
            "per_second": _rate(totals, states),
        }
        for queue, states in totals.ended.items()
    }


def total_cells(totals: Totals) -> list[list[Text]]:
    """Say how jobs ended, a line for each queue and one for all."""
    every: dict[State, int] = {}
    for states in totals.ended.values():
        for state, count in states.items():
            every[state] = every.get(state, 0) + count
    rows = [(Text(visible(queue), style="bold"), states) for queue, states in totals.ended.items()]
    return [
        [
            name,
            *(Text(str(states.get(state, 0))) for state in ENDS),
            Text(f"{_rate(totals, states):g}"),
        ]
        for name, states in [*rows, (Text("all", style="quiet"), every)]
    ]


def _rate(totals: Totals, states: Mapping[State, int]) -> float:
    return round(sum(states.values()) / (totals.now - totals.since).total_seconds(), 3)


def sums(stats: list[QueueStats]) -> dict[str, int]:
    """Add up what is in all queues."""
    levels = {
        level.name.lower(): sum(each.waiting.get(level, 0) for each in stats) for level in Priority
    }
    names = ("running", "retrying", "unsettled", "dead", "ready", "pending")
    return {
        **{f"waiting_{name}": count for name, count in levels.items()},
        **{name: sum(getattr(each, name) for each in stats) for name in names},
    }
