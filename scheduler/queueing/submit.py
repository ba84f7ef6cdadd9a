"""Submit: from checked drafts to rows, in one transaction, ours or the caller's.

Why nothing slips through: a dependency is held from ending until the job that waits for it is
committed; one that was gone by then has a ledger row that a later statement sees. An idempotency
key is one row, and whoever comes second waits for the first to commit or to roll back.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from uuid import UUID

from scheduler.errors import (
    DependencyCycle,
    DependencyLimit,
    RegistrationError,
    SubmissionError,
    UnknownDependency,
)
from scheduler.model.dependencies import inherited
from scheduler.model.states import State
from scheduler.model.submission import DEEPEST, Draft, Submission, check_cycles
from scheduler.queueing.ending import end
from scheduler.queueing.way import Way
from scheduler.store.job_queue import Dependency, Ending, JobKey, QueueTable
from scheduler.store.steps import Statement, Steps


def submit(
    table: QueueTable, drafts: Sequence[Draft], way: Way | None = None
) -> Steps[list[Submission]]:
    """Insert jobs with their keys and dependencies, all or nothing; return what stands for each.

    way: they may go straight into Redis after the commit, and it hears which do.
    """
    stands_for = yield from _claim_keys(table, drafts)
    new = [draft for draft in drafts if draft.id not in stands_for] if stands_for else drafts
    if any(draft.after or draft.after_any for draft in new):
        doomed = yield from _depend(table, new, stands_for)
    else:
        doomed = []
        if new:
            straight = None if way is None else way.sent(new)
            statement = (
                table.submit_one(new[0], straight) if len(new) == 1 else table.submit(new, straight)
            )
            rows = yield statement._replace(alone=all(draft.key is None for draft in drafts))
            if way is not None:
                way.answered(rows)
    if doomed:
        yield from end(table, doomed)
    if not stands_for:
        return [Submission(draft.id) for draft in drafts]
    return [
        Submission(stands_for.get(draft.id, draft.id), draft.id in stands_for) for draft in drafts
    ]


def submit_children(
    table: QueueTable, drafts: Sequence[Draft], check: Callable[[Draft], None]
) -> Steps[None]:
    """Insert the jobs that handlers submitted. Their parents have completed, so no job may raise.

    A refused job is FAILED, with the reason, and its idempotency key can be used again. If the key
    of a job is taken, its id is stored as an alias of the existing job.
    """
    refused: dict[UUID, str] = {}
    for draft in drafts:
        try:
            check(draft)
        except (SubmissionError, RegistrationError) as error:
            refused[draft.id] = str(error)
            draft.key = None
            draft.payload = draft.payload[:0] if draft.form == "bytes" else b"null"
    stands_for = yield from _claim_keys(table, drafts)
    new = [draft for draft in drafts if draft.id not in stands_for]
    doomed = yield from _depend(table, new, stands_for, refused)
    for draft in new:
        if draft.id in refused and draft.key is not None:
            yield table.of_job("drop_key", JobKey(draft.tenant, draft.id))
    if doomed:
        yield from end(table, doomed)
    if stands_for:
        tenants = {draft.id: draft.tenant for draft in drafts}
        yield table.alias({JobKey(tenants[id_], id_): owner for id_, owner in stands_for.items()})


def submit_parts(
    table: QueueTable,
    parts: Iterable[Sequence[Draft]],
    made: list[Submission],
    way: Way | None = None,
) -> Iterator[Statement]:
    """Insert jobs without keys and dependencies part by part, each made only when it is asked for;
    `made` grows.
    """
    for part in parts:
        made += [Submission(draft.id) for draft in part]
        yield table.submit(part, None if way is None else way.sent(part))


def _claim_keys(table: QueueTable, drafts: Sequence[Draft]) -> Steps[dict[UUID, UUID]]:
    """Resolve idempotency keys; return, for each job that exists already, which one that is."""
    # A retried job keeps the key of the job that failed, which owns it: it is not claimed again.
    keyed = [draft for draft in drafts if draft.key is not None and draft.retried_from is None]
    if not keyed:
        return {}
    firsts = {(draft.tenant, draft.type, draft.key): draft for draft in reversed(keyed)}
    rows = yield table.claim_keys(list(firsts.values()))
    owners = {(tenant, type_, key): owner for tenant, type_, key, owner in rows}
    found = {draft.id: owners[draft.tenant, draft.type, draft.key] for draft in keyed}
    return {ours: owner for ours, owner in found.items() if owner != ours}


def _depend(
    table: QueueTable,
    new: Sequence[Draft],
    stands_for: dict[UUID, UUID],
    refused: dict[UUID, str] | None = None,
) -> Steps[list[Ending]]:
    """Insert jobs with their edges; return those that end immediately because a dependency has.

    refused: reasons of refused jobs. If it is given, an invalid job ends FAILED instead of raising.
    """
    if not new:
        return []
    known = {JobKey(draft.tenant, draft.id): draft for draft in new}
    for draft in new:
        draft.after = list(dict.fromkeys(stands_for.get(each, each) for each in draft.after))
        draft.after_any = list(
            dict.fromkeys(stands_for.get(each, each) for each in draft.after_any)
        )
    if stands_for or refused is not None:
        _check_cycles(new, refused)  # a taken key can close a cycle, and so can ids in a handler
    outside = dict.fromkeys(
        key
        for draft in new
        for each in chain(draft.after, draft.after_any)
        if (key := JobKey(draft.tenant, each)) not in known
    )
    live, over = yield from _hold(table, outside)
    unknown = {key for key in outside if key not in live and key not in over}
    owners = (yield table.aliased(unknown)) if unknown else ()
    if owners:
        names = {id_: owner for _, id_, owner in owners}
        return (yield from _depend(table, new, names, refused))
    edges: list[Dependency] = []
    doomed: list[Ending] = []
    for draft in _in_order(new, known):
        try:
            _check_refused(draft, refused)
            _check_known(draft, unknown)
            edges += _attach(draft, known, live, over)
        except SubmissionError as error:
            if refused is None:
                raise
            refused[draft.id] = str(error)
            doomed.append(_refuse(draft, str(error)))
            continue
        doomed += _doom(draft, over)
    # Children of a job that a settler ends are not refused: deleting the tenant deletes them too.
    yield table.submit(new, refuse=refused is None)
    if edges:
        yield table.depend(edges)
    return doomed


def _hold(
    table: QueueTable, keys: Collection[JobKey]
) -> Steps[tuple[dict[JobKey, tuple[int, int]], dict[JobKey, State]]]:
    """Lock live dependencies so that they do not end; return their priority and depth, and how the
    others ended.
    """
    if not keys:
        return {}, {}
    rows = yield table.hold_dependencies(keys)
    live = {JobKey(tenant, id_): (priority, depth) for tenant, id_, priority, depth in rows}
    gone = [key for key in keys if key not in live]
    rows = (yield table.ended(gone)) if gone else []
    return live, {JobKey(tenant, id_): State(state) for tenant, id_, state in rows}


def _check_cycles(new: Sequence[Draft], refused: dict[UUID, str] | None) -> None:
    try:
        check_cycles(new)
    except DependencyCycle as error:
        if refused is None:
            raise
        for draft in new:
            if draft.after or draft.after_any:
                refused[draft.id] = str(error)
                draft.after, draft.after_any = [], []


def _check_refused(draft: Draft, refused: dict[UUID, str] | None) -> None:
    if refused is not None and draft.id in refused:
        raise SubmissionError(refused[draft.id])


def _check_known(draft: Draft, unknown: set[JobKey]) -> None:
    for each in chain(draft.after, draft.after_any) if unknown else ():
        if JobKey(draft.tenant, each) in unknown:
            raise UnknownDependency(
                f"job {each}, which {draft.type!r} is to wait for, does not exist"
            )


def _refuse(draft: Draft, reason: str) -> Ending:
    """Return the end of a job that ends with its submission."""
    draft.after, draft.after_any, draft.depth = [], [], 0
    draft.open_dependencies = 1  # it is not fed before it ends
    key = JobKey(draft.tenant, draft.id)
    return Ending(key=key, state=State.FAILED, reason=f"refused: {reason}")


def _attach(
    draft: Draft,
    known: dict[JobKey, Draft],
    live: dict[JobKey, tuple[int, int]],
    over: dict[JobKey, State],
) -> list[Dependency]:
    """Fill in what a job's dependencies mean for it, and return its edges to those that have not
    ended.
    """
    edges: list[Dependency] = []
    priorities, depths = [], [0]
    for kind, ids in (("after", draft.after), ("after_any", draft.after_any)):
        open_ids = [each for each in ids if JobKey(draft.tenant, each) not in over]
        for each in open_ids:
            key = JobKey(draft.tenant, each)
            priority, depth = (known[key].priority, known[key].depth) if key in known else live[key]
            priorities.append(priority)
            depths.append(depth + 1)
        if kind == "after":
            draft.open_dependencies += len(open_ids)
        elif len(open_ids) < len(ids):
            continue  # one of them has ended: that is enough
        elif open_ids:
            draft.open_dependencies += 1
        edges += [Dependency(draft.tenant, draft.id, each, kind) for each in open_ids]  # type: ignore[arg-type]
    draft.priority = inherited(draft.priority, priorities)
    draft.depth = max(depths)
    if draft.depth > DEEPEST:
        raise DependencyLimit(
            f"job {draft.type!r} would wait through {draft.depth} jobs, more than {DEEPEST}"
        )
    return edges


def _doom(draft: Draft, over: dict[JobKey, State]) -> list[Ending]:
    for each in draft.after:
        state = over.get(JobKey(draft.tenant, each), State.COMPLETED)
        if state is not State.COMPLETED:
            draft.open_dependencies = max(
                1, draft.open_dependencies
            )  # it may not be fed before it ends
            return [
                Ending(
                    key=JobKey(draft.tenant, draft.id),
                    state=state,
                    reason=f"its dependency {each} {state}",
                )
            ]
    return []


def _in_order(new: Sequence[Draft], known: dict[JobKey, Draft]) -> Iterable[Draft]:
    """Go through jobs so that each comes after those it waits for; the batch has no circle."""
    done: set[UUID] = set()
    for draft in new:
        stack = [draft]
        while stack:
            last = stack[-1]
            before = [
                known.get(JobKey(last.tenant, each)) for each in chain(last.after, last.after_any)
            ]
            open_ = [each for each in before if each is not None and each.id not in done]
            if open_:
                stack.append(open_[0])
            else:
                stack.pop()
                if last.id not in done:
                    done.add(last.id)
                    yield last
