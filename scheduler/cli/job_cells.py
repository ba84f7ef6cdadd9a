"""A submitted job, as JSON has it, as cells of a table, and as a timeline of its attempts."""

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.text import Text

from scheduler.cli.show import moment, visible
from scheduler.cli.view import SETTLED, brief
from scheduler.model.oneshot import Job
from scheduler.model.states import State

FIND_HEADS = ("ID", "TYPE", "QUEUE", "PRIORITY", "STATE", "ATTEMPT", "CHANGED", "WHY")
FIND_FOLDS = {"TYPE": 12, "QUEUE": 10, "CHANGED": 12, "WHY": 20, "PAYLOAD": 20}
OTHERS = {State.COMPLETED: "success", State.RUNNING: "accent"}


def job_facts(job: Job, *, with_payload: bool) -> dict[str, object]:
    """Say everything that a script may ask of a job; of its payload and result, only if it does."""
    facts: dict[str, object] = {
        "id": str(job.id),
        "tenant": job.tenant,
        "type": job.type,
        "queue": job.queue,
        "priority": job.priority.name.lower(),
        "state": job.state,
        "attempt": job.attempt,
        "attempts": [_without_checkpoint(each, with_payload=with_payload) for each in job.attempts],
        "created_at": job.created_at,
        "updated_at": job.updated_at,
        "run_at": job.run_at,
        "expires_at": job.expires_at,
        "started_at": job.started_at,
        "completed_at": job.completed_at,
        "tags": dict(job.tags),
        "correlation_id": job.correlation_id,
        "retried_from": None if job.retried_from is None else str(job.retried_from),
        "cancel_requested_at": job.cancel_requested_at,
        "progress": job.progress,
        "message": job.message,
        "reason": job.reason,
        "error": job.error,
    }
    return (
        {**facts, "payload": _plain(job.payload), "result": job.result} if with_payload else facts
    )


def found_cells(job: Job, *, with_payload: bool) -> list[Text]:
    """Say what a person asks of a job first, in one line."""
    cells = [
        Text(str(job.id), style="bold"),
        Text(visible(job.type)),
        Text(job.queue),
        Text(job.priority.name.lower(), style="quiet"),
        _state(job.state),
        Text(str(job.attempt) if job.attempt else "-"),
        Text(moment(job.updated_at), style="quiet"),
        Text(visible(_why(job.reason, job.error))),
    ]
    return [*cells, Text(_written(job.payload))] if with_payload else cells


def timeline(job: Job, *, with_payload: bool) -> Iterator[tuple[str, Text]]:
    """Go through the life of a job, label by label."""
    yield "state", _state(job.state) + Text(f" since {moment(job.updated_at)}")
    yield (
        "job",
        Text(
            f"{visible(job.type)} through queue {job.queue}, priority {job.priority.name.lower()}"
        ),
    )
    yield from _labels(job)
    if with_payload:
        yield "payload", Text(_written(job.payload))
    yield "submitted", Text(moment(job.created_at))
    retried = any(
        each["outcome"] == State.RETRYING for each in job.attempts
    )  # then `run_at` is that of the next one
    if job.run_at > job.created_at and not retried:
        yield "due", Text(moment(job.run_at))
    for each in job.attempts:
        yield f"attempt {each['attempt']}", _attempt(each)
    if job.state is State.RETRYING:
        yield "due again", Text(moment(job.run_at), style="warning")
    if job.state is State.RUNNING and job.started_at is not None:
        said = (
            ""
            if job.progress is None
            else f", {job.progress:g} % {visible(job.message or '')}".rstrip()
        )
        yield (
            f"attempt {job.attempt}",
            Text(f"runs since {moment(job.started_at)}{said}", style="accent"),
        )
    if job.cancel_requested_at is not None:
        yield "cancel", Text(f"asked for at {moment(job.cancel_requested_at)}", style="warning")
    yield from _end(job)
    if with_payload and job.raw_result is not None:
        yield "result", Text(_written(job.result))


def _end(job: Job) -> Iterator[tuple[str, Text]]:
    """Describe how a job ended, or why it waits and until when it can."""
    if job.completed_at is not None:
        why = _why(job.reason, job.error)
        yield "ended", Text(f"{moment(job.completed_at)}{f': {visible(why)}' if why else ''}")
        return
    if job.reason is not None:
        yield "waits", Text(visible(job.reason), style="warning")
    if job.expires_at is not None:
        yield "given up at", Text(moment(job.expires_at), style="quiet")


def _labels(job: Job) -> Iterator[tuple[str, Text]]:
    if job.tags:
        yield (
            "tags",
            Text(visible(", ".join(f"{name}={value}" for name, value in job.tags.items()))),
        )
    if job.correlation_id is not None:
        yield "correlation", Text(visible(job.correlation_id))
    if job.retried_from is not None:
        yield "retried from", Text(str(job.retried_from))


def _attempt(each: Mapping[str, Any]) -> Text:
    started, finished = (
        datetime.fromisoformat(each[name]) for name in ("started_at", "finished_at")
    )
    why = _why(each.get("category"), each.get("error"))
    where = f" on {visible(str(each.get('worker')))}" if each.get("worker") else ""
    told = Text(f"{moment(started)} ") + _state(State(each["outcome"]))
    return told + Text(
        f" after {brief(finished - started)}{where}{f': {visible(why)}' if why else ''}"
    )


def _state(state: State) -> Text:
    return Text(state, style=SETTLED.get(state) or OTHERS.get(state, ""))


def _why(reason: str | None, error: str | None) -> str:
    return ": ".join(filter(None, (reason, next(iter((error or "").splitlines()), ""))))


def _without_checkpoint(each: Mapping[str, Any], *, with_payload: bool) -> dict[str, Any]:
    """Leave out where a handler would go on: it is theirs, like the payload."""
    return {name: value for name, value in each.items() if with_payload or name != "checkpoint"}


def _plain(payload: object) -> object:
    return {"base64": base64.b64encode(payload).decode()} if isinstance(payload, bytes) else payload


def _written(value: object) -> str:
    return visible(json.dumps(_plain(value), ensure_ascii=False))
