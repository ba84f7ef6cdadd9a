"""Submitted jobs against a plain model of them: whatever is done in whatever order, rows and
answers agree with it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg.rows import tuple_row

from scheduler import (
    DependencyCycle,
    IllegalTransition,
    NewJob,
    Priority,
    State,
    Submission,
    UnknownDependency,
    UnknownJob,
)
from scheduler.model.fairness import Share
from scheduler.model.oneshot import Job
from scheduler.queueing.ending import end
from scheduler.store.job_queue import Ending, JobKey
from scheduler.testing import Scheduler
from tests.queueing.conftest import fed, steps

TENANTS = ("acme", "globex")
QUEUES = ("mail", "media")
BAD = (State.FAILED, State.DEAD_LETTER, State.CANCELLED)
STRANGER, FOREIGNER = 99, 98


@dataclass(eq=False)
class Known:
    """A job as the model sees it. `place`: when it was submitted."""

    id: UUID
    tenant: str
    type: str
    queue: str
    priority: int
    run_at: datetime
    created_at: datetime
    payload: object
    tags: dict[str, str]
    updated_at: datetime
    place: int
    correlation_id: str | None = None
    depth: int = 0
    after: set[UUID] = field(default_factory=set)
    after_any: set[UUID] = field(default_factory=set)
    retried_from: UUID | None = None
    fed: bool = False
    asked_at: datetime | None = None
    forced: bool = False
    ended: State | None = None
    ended_at: datetime | None = None
    reasons: set[str | None] = field(default_factory=set)
    feed: int = 1

    @property
    def open(self) -> int:
        return len(self.after) + bool(self.after_any)

    @property
    def ready(self) -> bool:
        return self.ended is None and not self.open and not self.fed

    def state(self, now: datetime) -> State:
        if self.ended is not None:
            return self.ended
        if self.open:
            return State.PENDING
        if self.fed:
            return State.SCHEDULED
        return State.DELAYED if self.run_at > now else State.PENDING

    def changed_at(self, now: datetime) -> datetime:
        """When its state changed last; the end of a delay changes no row."""
        over = self.ended is None and not self.open and self.run_at <= now
        return max(self.updated_at, self.run_at) if over else self.updated_at


@dataclass
class Wish:
    """A job that is to be submitted; what it waits for by number: earlier wishes of the call, or
    known jobs.
    """

    type: str
    queue: str
    priority: Priority
    key: str | None
    window: timedelta
    start: timedelta | None
    tags: dict[str, str]
    waits: list[tuple[str, int]]
    after: list["UUID | Wish"] = field(default_factory=list)
    after_any: list["UUID | Wish"] = field(default_factory=list)

    __hash__ = object.__hash__


class Model:
    """Seed 003 in memory: jobs, keys, and what an end means for those that wait."""

    def __init__(self) -> None:
        self.jobs: dict[UUID, Known] = {}
        self.keys: dict[tuple[str, str, str], tuple[UUID, datetime]] = {}
        self.places = 0

    def place(self) -> int:
        self.places += 1
        return self.places

    def live(self) -> list[Known]:
        return [job for job in self.jobs.values() if job.ended is None]

    def of(self, tenant: str) -> list[Known]:
        return [job for job in self.jobs.values() if job.tenant == tenant]

    def stands_for(self, tenant: str, wishes: list[Wish], now: datetime) -> dict[Wish, UUID | Wish]:
        """Tell, for each wish that is no new job, which job or wish of the call stands for it."""
        found: dict[Wish, UUID | Wish] = {}
        firsts: dict[tuple[str, str], Wish] = {}
        for wish in wishes:
            if wish.key is None:
                continue
            owner, until = self.keys.get((tenant, wish.type, wish.key), (None, now))
            if owner is not None and until > now:
                found[wish] = owner
            elif (first := firsts.setdefault((wish.type, wish.key), wish)) is not wish:
                found[wish] = first
        return found

    def submit(
        self,
        tenant: str,
        wishes: list[Wish],
        stand: dict[Wish, UUID | Wish],
        ids: dict[Wish, UUID],
        now: datetime,
    ) -> dict[UUID, list[tuple[State, str]]]:
        """Take jobs in; return those that end at once, each with the ends that may be the cause."""
        new = [wish for wish in wishes if wish not in stand]
        doomed: dict[UUID, list[tuple[State, str]]] = {}
        for wish in new:
            start = now if wish.start is None else now + wish.start
            self.jobs[ids[wish]] = Known(
                ids[wish],
                tenant,
                wish.type,
                wish.queue,
                wish.priority,
                start,
                now,
                wishes.index(wish),
                wish.tags,
                now,
                self.place(),
            )
            if wish.key is not None:
                self.keys[tenant, wish.type, wish.key] = (ids[wish], now + wish.window)
        for wish in in_order(new, stand):
            job = self.jobs[ids[wish]]
            after = {
                ids[each] if isinstance(each, Wish) else each for each in named(wish.after, stand)
            }
            after_any = {
                ids[each] if isinstance(each, Wish) else each
                for each in named(wish.after_any, stand)
            }
            waits_for = [
                self.jobs[each] for each in after | after_any if self.jobs[each].ended is None
            ]
            job.priority = min([job.priority, *(each.priority for each in waits_for)])
            job.depth = max([0, *(each.depth + 1 for each in waits_for)])
            job.after = {each for each in after if self.jobs[each].ended is None}
            if all(self.jobs[each].ended is None for each in after_any):
                job.after_any = after_any
            causes = [
                (self.jobs[each].ended, each) for each in after if self.jobs[each].ended in BAD
            ]
            if causes:
                doomed[job.id] = [
                    (state, f"its dependency {each} {state}") for state, each in causes if state
                ]
        return doomed

    def end(
        self, causes: dict[UUID, list[tuple[State, Any]]], now: datetime, seen: dict[UUID, State]
    ) -> set[UUID]:
        """End jobs and all that end with them. Where two causes come at once, either may be named:
        `seen` says.
        """
        ended: set[UUID] = set()
        while causes:
            for job_id, possible in causes.items():
                job = self.jobs[job_id]
                states = {state for state, _ in possible}
                job.ended = seen.get(job_id) if len(states) > 1 else states.pop()
                job.reasons = {reason for state, reason in possible if state == job.ended}
                job.ended_at = job.updated_at = now
                job.after, job.after_any = set(), set()
                assert job.reasons, (
                    f"{job_id} ended as {job.ended}, for which there is no cause in {possible}"
                )
            ended |= set(causes)
            causes = self._told(set(causes), now)
        return ended

    def _told(self, gone: set[UUID], now: datetime) -> dict[UUID, list[tuple[State, Any]]]:
        doomed: dict[UUID, list[tuple[State, Any]]] = {}
        for job in self.live():
            ends = [(self.jobs[each].ended, each) for each in job.after & gone]
            bad = [
                (state, f"its dependency {each} {state}")
                for state, each in ends
                if state and state in BAD
            ]
            if bad:
                doomed[job.id] = bad
            elif (job.after | job.after_any) & gone:
                job.after -= gone
                job.after_any = set() if job.after_any & gone else job.after_any
                if not job.after and not job.after_any:
                    job.updated_at = now
        return doomed


def named(given: Iterable[UUID | Wish], stand: dict[Wish, UUID | Wish]) -> list[UUID | Wish]:
    return [stand.get(each, each) if isinstance(each, Wish) else each for each in given]


def in_order(new: list[Wish], stand: dict[Wish, UUID | Wish]) -> Iterator[Wish]:
    """Go through the jobs of a call, each after those it waits for; raises when they wait in a
    circle.
    """
    left = list(new)
    while left:
        free = [
            wish
            for wish in left
            if not set(left) & set(named([*wish.after, *wish.after_any], stand))
        ]
        if not free:
            raise DependencyCycle
        yield from free
        left = [wish for wish in left if wish not in free]


WISHES = st.builds(
    Wish,
    type=st.sampled_from(["receipt", "thumbnail"]),
    queue=st.sampled_from(QUEUES),
    priority=st.sampled_from(list(Priority)),
    key=st.sampled_from([None, None, None, None, "k", "l"]),
    window=st.sampled_from([timedelta(minutes=30), timedelta(hours=24)]),
    start=st.sampled_from(
        [None, None, None, None, timedelta(minutes=5), timedelta(hours=2), timedelta(hours=-1)]
    ),
    tags=st.sampled_from([{}, {"a": "1"}, {"a": "2", "b": "1"}]),
    waits=st.lists(
        st.tuples(
            st.sampled_from(["after", "after_any"]), st.integers(0, 4) | st.integers(0, STRANGER)
        ),
        max_size=3,
    ),
)


class Machine(RuleBasedStateMachine):
    """Do anything to submitted jobs, and look after each step whether model and rows still
    agree.
    """

    def __init__(self, instance: Scheduler, own: psycopg.Connection[Any]) -> None:
        super().__init__()
        self.instance, self.own, self.model, self.looked = instance, own, Model(), 0
        own.rollback()
        own.execute("TRUNCATE job_queue, job_ready, job_dependency, job_key, job_history")
        own.commit()

    @property
    def now(self) -> datetime:
        return self.instance.clock.now()

    def pick(self, number: int, among: Iterable[Known]) -> Known:
        listed = list(among)
        return listed[number % len(listed)]

    @initialize(tenant=st.sampled_from(TENANTS), wishes=st.lists(WISHES, min_size=4, max_size=8))
    def begin(self, tenant: str, wishes: list[Wish]) -> None:
        self.submitted(tenant, wishes, "")

    @rule(
        tenant=st.sampled_from(TENANTS),
        wishes=st.lists(WISHES, min_size=1, max_size=4),
        order=st.permutations(range(4)),
        inside=st.sampled_from(["", "", "committed", "rolled back"]),
    )
    def submit(self, tenant: str, wishes: list[Wish], order: list[int], inside: str) -> None:
        self.submitted(tenant, wishes, inside, order)

    @rule(tenant=st.sampled_from(TENANTS), wishes=st.lists(WISHES, min_size=2, max_size=5))
    def submit_several(self, tenant: str, wishes: list[Wish]) -> None:
        self.submitted(tenant, wishes, "")

    @precondition(lambda self: self.model.keys)
    @rule(
        number=st.integers(0, 50),
        early=st.sampled_from([timedelta(0), timedelta(0), timedelta(microseconds=1)]),
    )
    def submit_as_a_key_expires(self, number: int, early: timedelta) -> None:
        keys = list(self.model.keys.items())
        (tenant, type_, key), (_, until) = keys[number % len(keys)]
        self.instance.clock.move_to(until - early)
        wish = Wish(type_, QUEUES[0], Priority.NORMAL, key, timedelta(minutes=30), None, {}, [])
        self.submitted(tenant, [wish], "")

    def submitted(
        self, tenant: str, wishes: list[Wish], inside: str, order: Iterable[int] = range(8)
    ) -> None:
        for number, wish in enumerate(wishes):
            self.connect(tenant, wish, wishes[:number])
        wishes = [wishes[number] for number in order if number < len(wishes)]
        stand = self.model.stands_for(tenant, wishes, self.now)
        refused = self.refused(tenant, wishes, stand)
        new = new_jobs(tenant, wishes, self.now)
        connection = self.own if inside else None
        if refused:
            with pytest.raises(refused):
                self.instance.submit_many(new, connection=connection)
            self.own.commit()
            return
        made = self.instance.submit_many(new, connection=connection)
        ids = {wish: one.id for wish, one in zip(wishes, made, strict=True)}
        assert [one.duplicate for one in made] == [wish in stand for wish in wishes]
        for wish, owner in stand.items():
            assert ids[wish] == (ids[owner] if isinstance(owner, Wish) else owner)
        fresh = [ids[wish] for wish in wishes if wish not in stand]
        assert len(set(fresh) - set(self.model.jobs)) == len(fresh)
        assert all(each.version == 4 for each in fresh)
        if inside == "rolled back":
            self.own.rollback()
            return
        self.own.commit()
        doomed = self.model.submit(tenant, wishes, stand, ids, self.now)
        self.model.end(doomed, self.now, self.outcomes())

    def connect(self, tenant: str, wish: Wish, earlier: list[Wish]) -> None:
        """Turn what a wish waits for into jobs: mostly of this tenant or call, now and then of
        nobody.
        """
        for kind, number in wish.waits:
            known = [job.id for job in self.model.of(tenant)]
            foreign = [job.id for job in self.model.jobs.values() if job.tenant != tenant]
            targets: list[UUID | Wish] = [*earlier, *known[-10:]]
            if number == STRANGER:
                targets = [uuid4()]
            elif number == FOREIGNER and foreign:
                targets = [foreign[-1]]
            if targets:
                (wish.after if kind == "after" else wish.after_any).append(
                    targets[number % len(targets)]
                )

    def refused(
        self, tenant: str, wishes: list[Wish], stand: dict[Wish, UUID | Wish]
    ) -> tuple[type[Exception], ...]:
        new = [wish for wish in wishes if wish not in stand]
        wanted = {each for wish in new for each in named([*wish.after, *wish.after_any], stand)}
        own = {job.id for job in self.model.of(tenant)}
        refused: list[type[Exception]] = []
        if any(isinstance(each, UUID) and each not in own for each in wanted):
            refused.append(UnknownDependency)
        try:
            list(in_order(new, stand))
        except DependencyCycle:
            refused.append(DependencyCycle)
        return tuple(refused)

    @precondition(lambda self: self.model.jobs)
    @rule(number=st.integers(0, 50), limit=st.integers(1, 3) | st.just(100))
    def feed(self, number: int, limit: int) -> None:
        ready = [job for job in self.model.jobs.values() if job.ready]
        chosen = self.pick(number, ready or self.model.jobs.values())
        self.take(chosen.queue, chosen.priority, limit)

    @rule()
    def feed_all(self) -> None:
        for queue in QUEUES:
            for priority in Priority:
                self.take(queue, priority, 100)

    def take(self, queue: str, priority: int, limit: int) -> None:
        given = [Share(priority, tenant, limit) for tenant in TENANTS]
        rows = steps(self.instance, fed(self.instance._running().queue, queue, given))
        taken = [self.model.jobs[row[1]] for row in rows]
        due = [
            job
            for job in self.model.jobs.values()
            if job.ready
            and (job.queue, job.priority) == (queue, priority)
            and job.run_at <= self.now
        ]
        turns = []
        for tenant in TENANTS:
            mine = sorted((job.run_at, job.place) for job in due if job.tenant == tenant)[:limit]
            turns += [(turn, *age) for turn, age in enumerate(mine)]
        assert [(job.run_at, job.place) for job in taken] == [(*age,) for _, *age in sorted(turns)]
        assert all(job in due for job in taken)
        for job in taken:
            job.fed = True

    @precondition(lambda self: self.model.jobs)
    @rule(
        chosen=st.lists(
            st.tuples(
                st.integers(0, 99),
                st.sampled_from([State.COMPLETED, State.COMPLETED, *BAD]),
                st.sampled_from([None, None, 0, 1, 2]),
            ),
            min_size=1,
            max_size=3,
        )
    )
    def end(self, chosen: list[tuple[int, State, int | None]]) -> None:
        endings: dict[UUID, tuple[Known, State, int | None]] = {}
        for number, wanted, feed in chosen:
            job = self.victim(number)
            state = (
                wanted
                if job.fed or wanted in (State.DEAD_LETTER, State.CANCELLED)
                else State.DEAD_LETTER
            )
            endings.setdefault(job.id, (job, state, feed))
        self.settle(list(endings.values()))

    @precondition(lambda self: any(job.open for job in self.model.jobs.values()))
    @rule(number=st.integers(0, 50))
    def complete_what_one_waits_for(self, number: int) -> None:
        waiting = self.pick(number, (job for job in self.model.jobs.values() if job.open))
        wanted = [self.model.jobs[each] for each in waiting.after | waiting.after_any]
        self.feed_all()
        if fed := [job for job in wanted if job.fed]:
            self.settle([(job, State.COMPLETED, None) for job in fed])

    def victim(self, number: int) -> Known:
        """Choose a job that ends: mostly a running one, sometimes any live one, now and then one
        that has ended.
        """
        live = self.model.live()
        running = [job for job in live if job.fed]
        among = running if number % 3 else live if number < 90 else []
        return self.pick(number, among or self.model.jobs.values())

    def settle(self, given: list[tuple[Known, State, int | None]]) -> None:
        endings = [
            Ending(key=JobKey(job.tenant, job.id), state=state, feed=feed, reason="because")
            for job, state, feed in given
        ]
        causes: dict[UUID, list[tuple[State, Any]]] = {
            job.id: [(state, "because")]
            for job, state, feed in given
            if job.ended is None and (state is State.COMPLETED or feed is None or feed >= job.feed)
        }
        answer, _ = steps(self.instance, end(self.instance._running().queue, endings))
        ended = self.model.end(causes, self.now, self.outcomes())
        assert sorted(str(key.id) for key, _ in answer) == sorted(str(each) for each in ended)
        assert all(self.model.jobs[key.id].ended == state for key, state in answer)

    @precondition(lambda self: self.model.jobs)
    @rule(
        number=st.integers(0, 50),
        reason=st.sampled_from([None, "changed my mind"]),
        force=st.booleans(),
    )
    def cancel(self, number: int, reason: str | None, force: bool) -> None:
        job = self.pick(number, self.model.jobs.values())
        if job.ended is not None and job.ended is not State.CANCELLED:
            with pytest.raises(IllegalTransition, match=f"{job.ended}"):
                self.instance.cancel_job(job.tenant, job.id, reason=reason)
            return
        state = self.instance.cancel_job(job.tenant, job.id, reason=reason, force=force)
        if job.fed and job.ended is None:
            assert state is State.SCHEDULED
            job.asked_at, job.forced = self.now, job.forced or force
        else:
            assert state is State.CANCELLED
            if job.ended is None:
                self.model.end(
                    {job.id: [(State.CANCELLED, reason or "cancelled")]}, self.now, self.outcomes()
                )

    @precondition(lambda self: self.model.jobs)
    @rule(
        number=st.integers(0, 50),
        priority=st.sampled_from([None, *Priority]),
        tags=st.sampled_from([None, {}, {"a": "1"}, {"c": "3"}]),
        correlation=st.sampled_from([None, "trace"]),
        delay=st.sampled_from([None, None, timedelta(seconds=1), timedelta(hours=1)]),
    )
    def update(
        self,
        number: int,
        priority: Priority | None,
        tags: dict[str, str] | None,
        correlation: str | None,
        delay: timedelta | None,
    ) -> None:
        job = self.pick(number, self.model.jobs.values())
        changes: dict[str, Any] = {
            "delay": delay,
            "priority": priority,
            "tags": tags,
            "correlation_id": correlation,
        }
        if job.ended is not None or (job.fed and (priority, delay) != (None, None)):
            with pytest.raises(IllegalTransition):
                self.instance.update_job(job.tenant, job.id, **changes)
            return
        answer = self.instance.update_job(job.tenant, job.id, **changes)
        if job.ready and any(each is not None for each in changes.values()):
            job.feed += 1
        if priority is not None:
            job.priority = priority
        if delay is not None:
            if not job.open and job.run_at <= self.now:  # it was pending, and is delayed
                job.updated_at = self.now
            job.run_at = self.now + delay
        job.tags = job.tags if tags is None else tags
        job.correlation_id = correlation or job.correlation_id
        self.same(answer, job)

    @precondition(lambda self: self.model.jobs)
    @rule(number=st.integers(0, 50))
    def retry(self, number: int) -> None:
        job = self.pick(number, self.model.jobs.values())
        if job.ended not in BAD:
            with pytest.raises(IllegalTransition):
                self.instance.retry_job(job.tenant, job.id)
            return
        made = self.instance.retry_job(job.tenant, job.id)
        assert not made.duplicate
        self.model.jobs[made.id] = Known(
            made.id,
            job.tenant,
            job.type,
            job.queue,
            job.priority,
            self.now,
            self.now,
            job.payload,
            job.tags,
            self.now,
            self.model.place(),
            correlation_id=job.correlation_id,
            retried_from=job.id,
        )

    @rule(by=st.sampled_from(["1s", "1s", "5m", "45m", "3h", "1d"]))
    def advance(self, by: str) -> None:
        self.instance.clock.advance(by)

    @rule(
        tenant=st.sampled_from(TENANTS),
        states=st.none() | st.lists(st.sampled_from(list(State)), min_size=1, max_size=4),
        type_=st.sampled_from([None, None, "receipt"]),
        queue=st.sampled_from([None, None, "mail"]),
        tag=st.sampled_from([None, None, "a", {"a": "1"}]),
        limit=st.integers(1, 7),
    )
    def find(
        self,
        tenant: str,
        states: list[State] | None,
        type_: str | None,
        queue: str | None,
        tag: Any,
        limit: int,
    ) -> None:
        found: list[Job] = []
        cursor = None
        while True:
            page = self.instance.find(
                tenant, state=states, type=type_, queue=queue, tag=tag, limit=limit, cursor=cursor
            )
            found += page.jobs
            cursor = page.cursor
            assert len(page.jobs) <= limit
            assert (len(page.jobs) == limit) == (cursor is not None)
            if cursor is None:
                break
        expected = [
            job.id
            for job in listed(self.model.of(tenant))
            if (states is None or job.state(self.now) in states)
            and type_ in (None, job.type)
            and queue in (None, job.queue)
            and (
                tag is None
                or (job.tags.get("a") == "1" if isinstance(tag, dict) else tag in job.tags)
            )
        ]
        assert [job.id for job in found] == expected

    @precondition(lambda self: self.model.jobs)
    @rule(number=st.integers(0, 50))
    def look_as_another_tenant(self, number: int) -> None:
        job = self.pick(number, self.model.jobs.values())
        other = TENANTS[job.tenant == TENANTS[0]]
        with pytest.raises(UnknownJob):
            self.instance.get(other, job.id)
        with pytest.raises(UnknownJob):
            self.instance.cancel_job(other, job.id)

    @invariant()
    def rows_agree_with_the_model(self) -> None:
        jobs = list(self.model.jobs.values())
        live = [job for job in jobs if job.ended is None]
        assert self.rows(
            "SELECT tenant, id, type, queue, priority, run_at, created_at, updated_at, "
            "open_dependencies, depth,"
            " coalesce(tags, '{}'), correlation_id, retried_from, cancel_requested_at, "
            "cancel_forced, feed, attempt,"
            " retrying FROM job_queue"
        ) == by_id(
            (
                job.tenant,
                job.id,
                job.type,
                job.queue,
                job.priority,
                job.run_at,
                job.created_at,
                job.updated_at,
                job.open,
                job.depth,
                job.tags,
                job.correlation_id,
                job.retried_from,
                job.asked_at,
                job.forced,
                job.feed,
                0,
                False,
            )
            for job in live
        )
        assert self.rows("SELECT tenant, id, queue, priority, run_at FROM job_ready") == by_id(
            (job.tenant, job.id, job.queue, job.priority, job.run_at) for job in live if job.ready
        )
        assert set(
            self.own.execute("SELECT tenant, job_id, depends_on, kind FROM job_dependency")
        ) == {
            (job.tenant, job.id, each, kind)
            for job in live
            for kind, waits in (("after", job.after), ("after_any", job.after_any))
            for each in waits
        }
        assert set(
            self.own.execute("SELECT tenant, type, key, job_id, expires_at FROM job_key")
        ) == {(*key, *held) for key, held in self.model.keys.items()}
        history = self.own.execute(
            "SELECT tenant, job_id, kind, at, finished_at, outcome, reason FROM job_history"
        )
        ledger = sorted(history.fetchall())
        assert [row[:-1] for row in ledger] == sorted(
            (job.tenant, str(job.id), "job", job.ended_at, job.ended_at, job.ended)
            for job in jobs
            if job.ended
        )
        assert all(row[-1] in self.model.jobs[UUID(row[1])].reasons for row in ledger)
        self.own.commit()

    @invariant()
    def answers_agree_with_the_model(self) -> None:
        for tenant in TENANTS:
            page = self.instance.find(tenant, limit=1000)
            expected = listed(self.model.of(tenant))
            assert [job.id for job in page.jobs] == [job.id for job in expected]
            for answer, job in zip(page.jobs, expected, strict=True):
                self.same(answer, job)
        for job in list(self.model.jobs.values())[self.looked % 5 :: 5]:
            self.same(self.instance.get(job.tenant, job.id), job)
        self.looked += 1

    def same(self, answer: Job, job: Known) -> None:
        assert answer.id == job.id
        assert (answer.state, answer.priority) == (job.state(self.now), job.priority)
        assert (answer.tenant, answer.type, answer.queue, answer.payload) == (
            job.tenant,
            job.type,
            job.queue,
            job.payload,
        )
        assert (answer.run_at, answer.created_at, answer.updated_at) == (
            job.run_at,
            job.created_at,
            job.changed_at(self.now),
        )
        assert (dict(answer.tags), answer.correlation_id) == (job.tags, job.correlation_id)
        assert (answer.completed_at, answer.retried_from) == (job.ended_at, job.retried_from)
        assert answer.reason in (job.reasons or {None})

    def rows(self, query: str) -> dict[UUID, tuple[Any, ...]]:
        return by_id(self.own.execute(query.encode()))

    def outcomes(self) -> dict[UUID, State]:
        rows = self.own.execute("SELECT job_id, outcome FROM job_history").fetchall()
        self.own.commit()
        return {UUID(job_id): State(outcome) for job_id, outcome in rows}


def new_jobs(tenant: str, wishes: list[Wish], now: datetime) -> list[NewJob]:
    """Write wishes as arguments, in their order; what they wait for may come later in the call."""
    made: dict[Wish, NewJob] = {}

    def make(wish: Wish) -> NewJob:
        if wish not in made:
            later = wish.start is not None and wish.start > timedelta(0)
            made[wish] = NewJob(
                tenant,
                wish.type,
                wishes.index(wish),
                queue=wish.queue,
                priority=wish.priority,
                idempotency_key=wish.key,
                idempotency_window=wish.window,
                tags=wish.tags,
                delay=wish.start if later else None,
                run_at=now + wish.start if wish.start is not None and not later else None,
                after=[
                    make(each) if isinstance(each, Wish) else Submission(each)
                    for each in wish.after
                ],
                after_any=[
                    make(each) if isinstance(each, Wish) else each for each in wish.after_any
                ],
            )
        return made[wish]

    return [make(wish) for wish in wishes]


def listed(jobs: list[Known]) -> list[Known]:
    """Put jobs in the order of `find`: live ones by age, then the ended by their end, the newest
    first.
    """
    live, ended = (
        [job for job in jobs if job.ended is None],
        [job for job in jobs if job.ended is not None],
    )
    return [
        *sorted(live, key=lambda job: job.place, reverse=True),
        *sorted(ended, key=lambda job: (job.ended_at, job.id), reverse=True),
    ]


def by_id(rows: Iterable[tuple[Any, ...]]) -> dict[UUID, tuple[Any, ...]]:
    kept = list(rows)
    assert len({row[1] for row in kept}) == len(kept)
    return {row[1]: row for row in kept}


@pytest.fixture
def plain(own: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    own.row_factory = tuple_row
    own.execute("SET TimeZone = 'UTC'")
    own.commit()
    return own


@pytest.mark.timeout(1800)
def test_whatever_is_done_to_jobs_the_rows_agree_with_the_model(
    instance: Scheduler, plain: psycopg.Connection[Any], full: bool
) -> None:
    run_state_machine_as_test(
        lambda: Machine(instance, plain),  # type: ignore[arg-type]
        settings=settings(
            max_examples=400 if full else 45,
            stateful_step_count=40 if full else 30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_job_that_waits_for_two_of_one_key_waits_for_one_job(instance: Scheduler) -> None:
    first, second = (NewJob("acme", "x", idempotency_key="k") for _ in range(2))
    made = instance.submit_many([first, second, NewJob("acme", "last", after=[first, second])])
    table = instance._running().queue
    steps(instance, end(table, [Ending(key=JobKey("acme", made[0].id), state=State.COMPLETED)]))
    rows = steps(instance, fed(table, "default", [Share(Priority.NORMAL, "acme", 10)]))
    assert [row[1] for row in rows] == [made[2].id]


@pytest.mark.timeout(20)
def test_a_circle_that_a_key_closes_is_refused(instance: Scheduler) -> None:
    last = NewJob("acme", "x", idempotency_key="k")
    first = NewJob("acme", "x", idempotency_key="k", after=[last])
    with pytest.raises(DependencyCycle):
        instance.submit_many([first, last])
