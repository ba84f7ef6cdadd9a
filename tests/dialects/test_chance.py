"""Workers that die and come back, reapers, cancels and second feeds in any order: each job ends
exactly once.
"""

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import pytest

from scheduler.dialects.interface import Cancelling, Delivery, Pushed, Queue, Renewed, Result
from scheduler.model.attempts import AttemptEnd, QueuedJob
from scheduler.model.labels import Priority
from scheduler.model.states import State
from tests.dialects.conftest import MakeQueue
from tests.dialects.values import back, ended, fetch_all, ids, job, retried
from tests.support.waiting import rest

T = TypeVar("T")
NO_TIME = timedelta(milliseconds=1)
STEPS = 150


class World:
    """A queue, three workers, a reaper and a settler; what they do is chance, and is kept account
    of.
    """

    def __init__(self, make_queue: MakeQueue, seed: int) -> None:
        self.chance = random.Random(seed)
        self.workers: list[Queue] = [make_queue(f"w{number}") for number in range(3)]
        self.reaper = make_queue("reaper")
        self.jobs: dict[str, QueuedJob] = {}
        self.removed: set[str] = set()
        self.over: Counter[str] = Counter()
        self.hands: dict[int, list[Delivery]] = {0: [], 1: [], 2: []}
        self.ghosts: list[tuple[int, Delivery]] = []
        self.settled: list[AttemptEnd] = []

    def step(self) -> None:
        moves = [
            self.push,
            self.push,
            self.again,
            self.fetch,
            self.fetch,
            self.fetch,
            self.finish,
            self.finish,
            self.late,
            self.die,
            self.recover,
            self.cancel,
            self.settle,
            self.look,
        ]
        self.chance.choice(moves)()

    def push(self) -> None:
        new = [
            job(priority=self.chance.choice(list(Priority)))
            for _ in range(self.chance.randint(1, 5))
        ]
        assert self.reaper.push(new + new[:1], epoch="") == [Pushed.NEW] * len(new) + [Pushed.KNOWN]
        self.jobs |= {each.id: each for each in new}

    def again(self) -> None:
        """Feed a job once more, as it is or anew."""
        for old in self._some(list(self.jobs.values())):
            anew = replace(old, feed=old.feed + 1, priority=self.chance.choice(list(Priority)))
            if old.id not in self.removed and self.chance.randrange(2):
                anew = old
            [found] = self.reaper.push([anew], epoch="")
            if self.over[old.id]:
                if (
                    found is Pushed.NEW
                ):  # its end was settled, and so the ledger would not feed it; take it out again
                    assert self.reaper.cancel([old.id]) == [Cancelling.REMOVED]
                else:
                    assert found is Pushed.FINISHED
                continue
            assert found is (Pushed.NEW if old.id in self.removed else Pushed.KNOWN)
            self.removed.discard(old.id)
            self.jobs[old.id] = anew

    def fetch(self) -> None:
        number = self.chance.randrange(3)
        taken = self.workers[number].fetch(self.chance.randint(1, 6), timeout=0)
        assert not set(ids(taken)) & self.removed
        assert all(not self.over[each] for each in ids(taken))
        self.hands[number] += taken

    def finish(self) -> None:
        number = self.chance.randrange(3)
        some = self._some(self.hands[number])
        results = [self._end(each) for each in some]
        accepted, more = self.workers[number].finish(results, fetch=self.chance.randint(0, 3))
        self._account(results, accepted)
        self.hands[number] = [each for each in self.hands[number] if each not in some] + more
        self.ghosts += [(number, each) for each in some]

    def late(self) -> None:
        """Somebody ends what it had long ago."""
        if self.ghosts:
            number, delivery = self.chance.choice(self.ghosts)
            mine = any(each.job.id == delivery.job.id for each in self.hands[number])
            if not mine:
                results = [self._end(delivery)]
                self._account(results, self.workers[number].finish(results)[0])

    def die(self) -> None:
        number = self.chance.randrange(3)
        self.workers[number].renew(dict.fromkeys(self.hands[number]), lease=NO_TIME)
        self.ghosts += [(number, each) for each in self.hands[number]]
        self.hands[number] = []

    def recover(self) -> None:
        decided: list[str] = []

        def decide(delivery: Delivery) -> Result:
            decided.append(delivery.job.id)
            pushed = self.jobs[delivery.job.id]
            told = replace(delivery.job, attempt=pushed.attempt, uncharged=pushed.uncharged)
            assert replace(told, previous_attempt_id=None) == pushed
            return self.chance.choice([back, retried])(delivery)

        assert self.reaper.recover(decide) == len(decided) == len(set(decided))

    def cancel(self) -> None:
        for each in self._some(list(self.jobs)):
            [found] = self.reaper.cancel([each])
            if found is Cancelling.REMOVED:
                assert not self.over[each]
                self.removed.add(each)
            elif found is Cancelling.UNKNOWN:
                assert self.over[each] or each in self.removed

    def settle(self) -> None:
        read = self.reaper.outcomes(100, timeout=0)
        self.settled += [end for each in read for end in each.ends]
        self.reaper.acknowledge(read)

    def look(self) -> None:
        number = self.chance.randrange(3)
        hands = self.hands[number]
        answers = self.workers[number].renew(dict.fromkeys(hands), lease=timedelta(seconds=30))
        kept = {
            each.job.id
            for each, answer in zip(hands, answers, strict=True)
            if answer is not Renewed.LOST
        }
        assert kept <= set(ids(self.workers[number].held()))

    def _end(self, delivery: Delivery) -> Result:
        kind = self.chance.randrange(6)
        if kind == 0:
            return back(delivery)
        if kind <= 2:
            return retried(delivery, self.chance.choice([timedelta(), timedelta(milliseconds=3)]))
        return ended(
            delivery, self.chance.choice([State.COMPLETED, State.DEAD_LETTER, State.CANCELLED])
        )

    def _account(self, results: list[Result], accepted: list[bool]) -> None:
        for result, yes in zip(results, accepted, strict=True):
            if yes:
                assert result.delivery.job.feed == self.jobs[result.delivery.job.id].feed
                assert result.delivery.job.id not in self.removed
                self.over[result.delivery.job.id] += bool(result.end and result.end.state.terminal)

    def _some(self, items: list[T]) -> list[T]:
        return self.chance.sample(items, min(len(items), self.chance.randint(0, 4)))


@pytest.mark.parametrize("seed", range(6))
def test_each_job_ends_exactly_once_whatever_happens(make_queue: MakeQueue, seed: int) -> None:
    world = World(make_queue, seed)
    for _ in range(STEPS):
        world.step()
    for number in range(3):
        world.workers[number].renew(dict.fromkeys(world.hands[number]), lease=NO_TIME)
    last = make_queue("last")
    for _ in range(50):
        world.recover()
        while taken := fetch_all(last):
            results = [ended(each) for each in taken]
            world._account(results, last.finish(results)[0])
        if all(world.over[each] or each in world.removed for each in world.jobs):
            break
        rest(0.005)
    for _ in range(100):
        world.settle()
    assert {each: world.over[each] for each in world.jobs} == {
        each: 0 if each in world.removed else 1 for each in world.jobs
    }
    assert Counter(end.job_id for end in world.settled if end.state.terminal) == +world.over
    assert world.reaper.known(list(world.jobs)) == [None] * len(world.jobs)
    assert last.depths() == (dict.fromkeys(Priority, 0), 0, 0, 0, last.depths().dead, 0)
