"""For the tests of your own jobs: a scheduler whose time you move, so that no test sleeps.

    with Scheduler(dsn, clock=ManualClock()) as instance:
        instance.register("acme", "report", report, cron="0 6 * * *")
        assert len(instance.advance("3 days")) == 3

Bodies run inside `tick` and `advance`, to their end, on a real Postgres with the real statements.
While one runs its lease is not renewed: a body that moves the clock by more than the lease loses
it, as a suspended process does.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Generic, TypeVar, Unpack

import scheduler
from scheduler.app import Scheduler as RealScheduler
from scheduler.config import SchedulerOptions
from scheduler.events import Event, FireEnded
from scheduler.instance import Instance
from scheduler.model.definition import Key
from scheduler.model.durations import duration
from scheduler.periodic.registry import Registered
from scheduler.periodic.run import Run, Runner

if TYPE_CHECKING:
    from sqlalchemy import Engine

E = TypeVar("E", bound=Event)
R = TypeVar("R")

START = datetime(2030, 1, 1, tzinfo=UTC)
MOST_ROUNDS = 100_000


class ManualClock:
    """A clock that stands still until it is moved; it is also what the database takes for now."""

    def __init__(self, start: datetime = START) -> None:
        self._start = self._now = start.astimezone(UTC)

    def now(self) -> datetime:
        """Return the moment."""
        return self._now

    def wall(self) -> datetime:
        """Return the moment: this machine's clock is never wrong here."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds that were played."""
        return (self._now - self._start).total_seconds()

    def advance(self, by: timedelta | str) -> None:
        """Move on without running anything: the lid was closed."""
        self._now += duration(by, name="advance")

    def move_to(self, moment: datetime) -> None:
        """Move on to a moment; time does not go back."""
        self._now = max(self._now, moment)


class InlineRunner(Runner):
    """Runs bodies where they are taken, to their end."""

    def room(self) -> int:
        """Take all there is."""
        return 1000

    def free(self) -> int:
        """Return the room: every worker is idle."""
        return self.room()

    def take(self, runs: list[Run]) -> None:
        """Run, one after another."""
        for run in runs:
            self._ended(self.execute(run))


class Scheduler(RealScheduler):
    """A scheduler without threads: time passes in `advance`, and everything due runs in `tick`, in
    this thread.
    """

    def __init__(
        self,
        database: "str | Engine | None" = None,
        *,
        clock: ManualClock | None = None,
        **options: Unpack[SchedulerOptions],
    ) -> None:
        options["listen"] = False  # nobody is there to hear
        super().__init__(database, **options)
        self.clock = clock or ManualClock()

    def tick(self) -> list[FireEnded]:
        """Run everything that is due now, what falls due by that included; return what ended."""
        instance = self._running()
        ended: list[FireEnded] = []
        unsubscribe = self.subscribe(
            lambda event: ended.append(event) if isinstance(event, FireEnded) else None
        )
        try:
            instance.loop.sync_now()
            for _ in range(MOST_ROUNDS):
                before = len(ended)
                instance.loop.step()
                instance.leases.step()
                instance.finisher.flush()
                if len(ended) == before and not _due(instance, self.clock):
                    return ended
        finally:
            unsubscribe()
        raise AssertionError(
            f"{MOST_ROUNDS} rounds, and there is still something due at {self.clock.now()}"
        )

    def advance(self, by: timedelta | str) -> list[FireEnded]:
        """Let time pass from fire to fire, running each at its moment; return what ended."""
        end = self.clock.now() + duration(by, name="advance")
        ended = self.tick()
        while (following := self._running().registry.next_due()) is not None and following <= end:
            self.clock.move_to(following)
            ended += self.tick()
        self.clock.move_to(end)
        return ended + self.tick()

    def _steered(self, answer: R) -> R:
        self._running().loop.sync_now()
        return answer

    def _construct(self, database: "str | Engine", inherited: dict[Key, Registered]) -> Instance:
        return Instance(
            self.settings,
            database,
            self._events,
            inherited,
            clock=self.clock,
            now=self.clock.now,
            runner=InlineRunner,
        )

    def _open(self, instance: Instance) -> None:
        instance.open()


def initialise(
    database: "str | Engine | None" = None,
    *,
    clock: ManualClock | None = None,
    **options: Unpack[SchedulerOptions],
) -> Scheduler:
    """Make it the scheduler of this process: your app's own `scheduler.register(...)` then
    registers with it.
    """
    made = Scheduler(database, clock=clock, **options)
    scheduler._adopt(made)  # noqa: SLF001 - the same package
    return made


class Seen(Generic[E]):
    """What `wait_for` saw, once its block has ended."""

    event: E


@contextmanager
def wait_for(
    instance: RealScheduler, kind: type[E], *, timeout: float = 10.0, **fields: object
) -> Iterator[Seen[E]]:
    """Wait, at the end of the block, for an event that happens in or after it and has these fields.

    with wait_for(instance, FireEnded, job_id="report") as seen:
        instance.trigger("acme", "report")
    assert seen.event.outcome == "success"
    """
    happened = threading.Event()
    seen: Seen[E] = Seen()

    def listen(event: Event) -> None:
        if isinstance(event, kind) and all(
            getattr(event, name) == value for name, value in fields.items()
        ):
            if not happened.is_set():
                seen.event = event
            happened.set()

    unsubscribe = instance.subscribe(listen)
    try:
        yield seen
        if not happened.wait(timeout):
            raise TimeoutError(f"no {kind.__name__} with {fields} within {timeout:g} s")
    finally:
        unsubscribe()


def _due(instance: Instance, clock: ManualClock) -> bool:
    following = instance.registry.next_due()
    return following is not None and following <= clock.now()
