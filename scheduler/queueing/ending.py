"""End jobs: rows into the ledger, and what that means for those that wait for them, as far as it
goes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.model.dependencies import inflicted
from scheduler.model.states import State
from scheduler.store.job_queue import Dependency, Ending, JobKey, QueueTable
from scheduler.store.steps import Steps


class Ended(NamedTuple):
    """Who ended, and how; `freed`: others, who waited for them, may be fed now."""

    jobs: list[tuple[JobKey, State]]
    freed: bool


def end(table: QueueTable, endings: Sequence[Ending]) -> Steps[Ended]:
    """End jobs and all that ends with them, in one transaction.

    A job that another transaction holds (somebody is about to depend on it) is passed over and not
    returned.
    """
    ended, freed = list[tuple[JobKey, State]](), False
    # Of several ends of one job the first success is what counts: a later one may be too late.
    completed = State.COMPLETED
    chosen: dict[tuple[str, int], Ending] = {}
    for each in endings:
        key = each.key.tenant, each.key.id.int  # a UUID is dear to hash
        if key not in chosen or chosen[key].state is not completed:
            chosen[key] = each
    endings = list(chosen.values())
    while endings:
        rows = yield table.settle(endings)
        over = [
            (endings[place - 1].key, State.DEAD_LETTER if late else endings[place - 1].state)
            for place, late in rows
        ]
        ended += over
        endings, some = yield from _follow(table, over)
        freed = freed or some
    return Ended(ended, freed)


def propagate(table: QueueTable, keys: Sequence[JobKey]) -> Steps[Ended]:
    """Do for jobs that have ended what their end should have done for those that wait; return who
    ended with them.
    """
    rows = yield table.ended(keys)
    endings, some = yield from _follow(
        table, [(JobKey(tenant, id_), State(state)) for tenant, id_, state in rows]
    )
    ended, freed = yield from end(table, endings)
    return Ended(ended, freed or some)


def _follow(
    table: QueueTable, over: Sequence[tuple[JobKey, State]]
) -> Steps[tuple[list[Ending], bool]]:
    """Let those go that waited for jobs which have ended; return those that end with them, and
    whether any may go.
    """
    if not over or not (yield table.any_dependents())[0][0]:
        return [], False
    states = dict(over)
    rows = yield table.dependents(states)
    edges = [Dependency._make(row) for row in rows]
    if not edges:
        return [], False
    yield table.hold_dependents(JobKey(edge.tenant, edge.job_id) for edge in edges)
    endings = _swept_along(edges, states)
    doomed = {ending.key for ending in endings}
    released = [edge for edge in edges if JobKey(edge.tenant, edge.job_id) not in doomed]
    freed = bool(released and (yield table.release(released)))
    return endings, freed


def _swept_along(edges: Sequence[Dependency], states: dict[JobKey, State]) -> list[Ending]:
    found: dict[JobKey, Ending] = {}
    for edge in edges:
        state = inflicted(edge.kind, states[JobKey(edge.tenant, edge.depends_on)])
        if state is not None:
            key = JobKey(edge.tenant, edge.job_id)
            found.setdefault(
                key,
                Ending(key=key, state=state, reason=f"its dependency {edge.depends_on} {state}"),
            )
    return list(found.values())
