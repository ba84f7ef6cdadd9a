"""Commands about queues: on Redis, and on the tables if a database is named; no instance needs to
run.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import click
from rich.text import Text

from scheduler.cli.database import database_options, redis_option
from scheduler.cli.opening import bar, opened_queues
from scheduler.cli.options import Configuration
from scheduler.cli.queue_cells import (
    ENTRY_FOLDS,
    ENTRY_HEADS,
    KEY_HEADS,
    QUEUE_FOLDS,
    QUEUE_HEADS,
    TOTAL_HEADS,
    WORKER_FOLDS,
    WORKER_HEADS,
    entry_cells,
    entry_facts,
    queue_cells,
    queue_facts,
    sums,
    total_cells,
    total_facts,
    worker_cells,
)
from scheduler.cli.show import emit, emit_json, listing, moment, screen, visible
from scheduler.model.durations import duration

yes_option = click.option(
    "--yes", is_flag=True, help="Do it; without this it only says what it would do."
)


@click.command(
    "queues", short_help="List the queues: how much waits, runs, waits to be fed, is dead."
)
@redis_option
@database_options
def list_queues(config: Configuration, *, as_json: bool) -> None:
    """List every queue that is configured, was ever fed, or has jobs that wait: what is in Redis,
    and in Postgres.

    Example: scheduler queues --json
    """
    with opened_queues(config) as queues:
        found = queues.stats()
    if as_json:
        emit_json([queue_facts(each) for each in found])
    elif found:
        place, now = screen(), datetime.now(UTC)
        emit(
            listing(
                QUEUE_HEADS,
                [queue_cells(each, now) for each in found],
                folds=QUEUE_FOLDS,
                place=place,
            ),
            place,
        )
    else:
        emit(Text("no queue yet: none is configured, and no job was submitted"), screen())


@click.command(
    short_help="List the workers that live: what each holds, and how its circuit breakers are."
)
@click.argument("queue", required=False)
@redis_option
@database_options
def workers(config: Configuration, queue: str | None, *, as_json: bool) -> None:
    """List the workers of QUEUE, or of all, as they last said it: a line for each of their queues.

    Example: scheduler workers mail
    """
    with opened_queues(config) as queues:
        found = queues.workers() if queue is None else queues.queue(queue).workers()
    if as_json:
        emit_json([each.plain() for each in found])
    elif found:
        place, now = screen(), datetime.now(UTC)
        rows = [row for each in found for row in worker_cells(each, now)]
        emit(listing(WORKER_HEADS, rows, folds=WORKER_FOLDS, place=place), place)
    else:
        emit(Text("no worker lives; start one: scheduler worker --app MODULE"), screen())


@click.command(short_help="Count what is in all queues, and the jobs that ended, with their rates.")
@click.option(
    "--since", default="1h", show_default=True, metavar="SPAN", help="Ends within this span."
)
@redis_option
@database_options
def stats(config: Configuration, since: str, *, as_json: bool) -> None:
    """Count the jobs in all queues, and those that ended, by queue and state, with how many a
    second.

    Example: scheduler stats --since 15m
    """
    with opened_queues(config) as queues:
        told, totals = sums(queues.stats()), queues.totals(duration(since, name="since"))
    if as_json:
        emit_json(
            {"now": totals.now, "since": totals.since, "jobs": told, "ended": total_facts(totals)}
        )
        return
    place = screen()
    emit(
        Text(
            ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in told.items() if count)
            or "empty"
        ),
        place,
    )
    emit(listing(TOTAL_HEADS, total_cells(totals), folds={"QUEUE": 10}, place=place), place)


@click.command("stats-keys", short_help="List the keys of queues in Redis, with type and size.")
@click.argument("queue", required=False)
@redis_option
@database_options
def stats_keys(config: Configuration, queue: str | None, *, as_json: bool) -> None:
    """List the keys of QUEUE, or of all, in Redis; those that each job of BullMQ has are one line.

    Example: scheduler stats-keys mail
    """
    with opened_queues(config) as queues:
        names = queues.names() if queue is None else [queue]
        found = [(name, key) for name in names for key in list(queues.queue(name).keys())]
    if as_json:
        emit_json(
            [
                {"queue": name, "key": key.name, "type": key.type, "size": key.size}
                for name, key in found
            ]
        )
        return
    place = screen()
    rows = [
        [*map(Text, (visible(name), visible(key.name), key.type, str(key.size)))]
        for name, key in found
    ]
    emit(
        listing(KEY_HEADS, rows, folds={"KEY": 20}, place=place) if rows else Text("no key"), place
    )


@click.command(
    short_help="Print the next jobs of a queue, without taking them; or its dead letters."
)
@click.argument("queue")
@click.option(
    "-n", "count", type=click.IntRange(1, 10_000), default=10, show_default=True, help="How many."
)
@click.option("--dead", is_flag=True, help="Its dead letters instead, newest first.")
@click.option("--payload", "with_payload", is_flag=True, help="Print payloads too.")
@redis_option
@database_options
def peek(
    config: Configuration, queue: str, count: int, *, dead: bool, with_payload: bool, as_json: bool
) -> None:
    """Print the next jobs of QUEUE that are in Redis, in the order in which they will be taken;
    they stay there.

    Example: scheduler peek mail -n 3
    """
    with opened_queues(config) as queues:
        chosen = queues.queue(queue)
        found = chosen.dead(count) if dead else chosen.peek(count)
    if as_json:
        emit_json([entry_facts(each, with_payload=with_payload) for each in found])
        return
    place = screen()
    heads = (*ENTRY_HEADS, "PAYLOAD") if with_payload else ENTRY_HEADS
    rows = [entry_cells(each, with_payload=with_payload) for each in found]
    nothing = Text(
        f"queue {visible(queue)} has no dead letter"
        if dead
        else f"nothing waits in queue {visible(queue)}"
    )
    emit(listing(heads, rows, folds=ENTRY_FOLDS, place=place) if rows else nothing, place)


@click.command("requeue-dlq", short_help="Let dead letters of a queue run again.")
@click.argument("queue")
@click.option("--id", "ids", multiple=True, metavar="ID", help="This one; may be repeated.")
@click.option("--all", "every", is_flag=True, help="All of them.")
@redis_option
@database_options
def requeue_dlq(
    config: Configuration, queue: str, ids: tuple[str, ...], *, every: bool, as_json: bool
) -> None:
    """Let dead letters of QUEUE run again: a job of the ledger as `retry-job` does, any other in
    its own list.

    Example: scheduler requeue-dlq mail --all
    """
    if every == bool(ids):
        raise click.UsageError("name dead letters with --id, or say --all")
    with opened_queues(config) as queues:
        chosen = queues.queue(queue)
        total = chosen.stats().dead if every else len(ids)
        seen = []
        with bar(f"requeueing {visible(queue)}", total) as advance:
            for each in chosen.requeueing(None if every else ids):
                seen.append(each)
                advance(1)
    refused = {each.id: each.reason for each in seen if each.job is None}
    if as_json:
        jobs = {each.id: each.job for each in seen if each.job is not None}
        emit_json({"queue": queue, "requeued": len(jobs), "jobs": jobs, "refused": refused})
    else:
        emit(
            Text(
                f"queue {visible(queue)}: {len(seen) - len(refused)} requeued, {len(refused)} not"
            ),
            screen(),
        )
        for id_, reason in refused.items():
            click.echo(f"scheduler: {visible(id_)}: {visible(reason)}", err=True)
    if refused:
        raise SystemExit(1)


@click.command("purge-dlq", short_help="Drop the dead letters of a queue.")
@click.argument("queue")
@yes_option
@redis_option
@database_options
def purge_dlq(config: Configuration, queue: str, *, yes: bool, as_json: bool) -> None:
    """Drop the dead letters of QUEUE. The ledger keeps what it knows of its jobs; those of others
    are lost.

    Example: scheduler purge-dlq mail --yes
    """
    with opened_queues(config) as queues:
        chosen = queues.queue(queue)
        count = chosen.stats().dead
        if yes:
            with bar(f"purging {visible(queue)}", count) as advance:
                count = sum(advance(gone) for gone in chosen.purging())
    _purged(
        {"queue": queue, "purged": count if yes else 0, "would_purge": count, "dry_run": not yes},
        as_json=as_json,
    )


@click.command("purge-all", short_help="Remove all keys of all queues from Redis.")
@yes_option
@redis_option
@database_options
def purge_all(config: Configuration, *, yes: bool, as_json: bool) -> None:
    """Remove every key of every queue from Redis. Jobs that a ledger has are fed again; those of
    others are lost.

    Example: scheduler purge-all --yes
    """
    gone: dict[str, int] = {}
    with opened_queues(config) as queues:
        for name in queues.names():
            redis, gone[name] = queues.queue(name).redis, 0
            with bar(f"removing {visible(name)}", None) as advance:
                for names in redis.names():
                    gone[name] += advance(redis.erase(names) if yes else len(names))
    count = sum(gone.values())
    facts = {
        "purged": count if yes else 0,
        "would_purge": count,
        "dry_run": not yes,
        "queues": gone,
    }
    _purged(facts, as_json=as_json, what="keys")


@click.command(
    "pause-queue", short_help="Stop a queue: nothing is fed to it, nothing taken from it."
)
@click.argument("queue")
@redis_option
@database_options
def pause_queue(config: Configuration, queue: str, *, as_json: bool) -> None:
    """Stop QUEUE until it is resumed: nothing is fed to it and nothing taken from it; what runs
    goes on.

    Example: scheduler pause-queue mail
    """
    with opened_queues(config) as queues:
        since = queues.pause(queue)
    if as_json:
        emit_json({"queue": queue, "paused_at": since})
    else:
        emit(Text(f"queue {visible(queue)} is paused since {moment(since)}"), screen())


@click.command("resume-queue", short_help="Let a paused queue go on.")
@click.argument("queue")
@redis_option
@database_options
def resume_queue(config: Configuration, queue: str, *, as_json: bool) -> None:
    """Let QUEUE go on.

    Example: scheduler resume-queue mail
    """
    with opened_queues(config) as queues:
        was = queues.resume(queue)
    if as_json:
        emit_json({"queue": queue, "was_paused": was})
    else:
        emit(Text(f"queue {visible(queue)} {'goes on' if was else 'was not paused'}"), screen())


COMMANDS = (
    list_queues,
    workers,
    stats,
    stats_keys,
    peek,
    requeue_dlq,
    purge_dlq,
    purge_all,
    pause_queue,
    resume_queue,
)


def _purged(facts: Mapping[str, object], *, as_json: bool, what: str = "dead letters") -> None:
    if as_json:
        emit_json(facts)
    elif facts["dry_run"]:
        emit(Text(f"would remove {facts['would_purge']} {what}; say --yes to do it"), screen())
    else:
        emit(Text(f"removed {facts['purged']} {what}"), screen())
