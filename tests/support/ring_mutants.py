"""Wrong copies of the ring, for proofs that must notice them."""

from collections.abc import Callable, Sequence

from scheduler.dialects import client
from scheduler.dialects.interface import Queue
from scheduler.dialects.standard import finish
from scheduler.model.attempts import AttemptEnd
from scheduler.model.fairness import Share
from scheduler.queueing.feeder import Feeder
from scheduler.queueing.ring import queued
from scheduler.queueing.settler import Settler
from scheduler.store.engine import Row
from scheduler.store.steps import Steps


def acknowledge_first() -> None:
    """The settler forgets ends in Redis before they are in the ledger."""
    plain = Settler._settle

    def settle(settler: Settler, ends: Sequence[AttemptEnd]) -> list[AttemptEnd]:
        settler._settled = settler._left
        settler._acknowledge()
        return plain(settler, ends)

    Settler._settle = settle  # type: ignore[method-assign, assignment]


def commit_first() -> None:
    """The feeder takes rows away, and pushes what they said afterwards."""
    plain = Feeder._fed

    def steps(feeder: Feeder, queue: Queue, divided: Sequence[Share]) -> Steps[list[Row] | None]:
        ledger = feeder._ledger
        rows = yield ledger.jobs.feed(queue.name, divided)
        if not rows:
            yield ledger.ring.of_queue("open_queue", queue.name)
            return None
        mark, tenant, *_ = rows[0]
        if tenant is None:
            return []
        now, ours = feeder._now(), ledger.installation
        jobs = [queued(queue.name, row, ours, now) for row in rows if row[4] is not None]
        later.append(lambda: queue.push(jobs, epoch=str(mark)))
        return rows

    later: list[Callable[[], object]] = []

    def fed(feeder: Feeder, *args: object) -> int | None:
        answer = plain(feeder, *args)  # type: ignore[arg-type]
        while later:
            later.pop()()
        return answer

    Feeder._steps = steps  # type: ignore[method-assign, assignment]
    Feeder._fed = fed  # type: ignore[method-assign, assignment]


def finish_without_fence() -> None:
    """Redis takes the end of any delivery, whoever has the job by now."""
    plain, fence = client.script, "if is_leased then\n    answer[i]"

    def script(dialect: str, name: str) -> client.Script:
        made = plain(dialect, name)
        if name != "finish":
            return made
        assert fence in made.text, "close.lua has changed: mutate what it has now"
        text = made.text.replace(fence, fence.replace("then", "or verb == 'completed' then", 1))
        return client.Script(name, text, "0" * 40)

    finish.script = script  # type: ignore[attr-defined, assignment]


# Where to kill those that forget too early.
FORGETFUL = {
    "acknowledge_first": "instance settler._run commit before",
    "commit_first": "instance feeder._fed commit after",
}
MUTANTS: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (acknowledge_first, commit_first, finish_without_fence)
}


def mutate(name: str) -> None:
    """Make this process a wrong copy."""
    MUTANTS[name]()
