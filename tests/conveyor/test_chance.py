"""Trees of jobs that are added, tried again, put back and lost with their workers, in any order:
each ends once.
"""

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from scheduler.dialects.client import Client
from scheduler.dialects.conveyor import add as adding
from scheduler.dialects.conveyor.keys import Keys
from scheduler.dialects.interface import Delivery, Result
from tests.conveyor.conftest import MakeQueue, contents, new
from tests.dialects.values import back, ended, fetch_all, ids, retried
from tests.support.waiting import rest

NO_TIME = timedelta(milliseconds=1)
STEPS = 200


class World:
    """What is known of each job; children and heirs only of jobs whose run is not over, as handlers
    add them.
    """

    def __init__(self, redis: Client, keys: Keys, make_queue: MakeQueue, seed: int) -> None:
        self.chance = random.Random(seed)
        self.redis, self.keys = redis, keys
        self._make = make_queue
        self.workers = [make_queue(f"w{number}") for number in range(3)]
        self.hands: list[list[Delivery]] = [[], [], []]
        self.jobs: dict[str, Any] = {}
        self.over: Counter[str] = Counter()

    def step(self) -> None:
        moves = [
            self.root,
            self.child,
            self.child,
            self.heir,
            self.fetch,
            self.fetch,
            self.finish,
            self.finish,
            self.die,
            self.recover,
        ]
        self.chance.choice(moves)()

    def root(self) -> None:
        self._add(new())

    def child(self) -> None:
        if (above := self._open()) is not None:
            self._add(new(parent_uuid=above))

    def heir(self) -> None:
        if (before := self._open()) is not None:
            self._add(new(predecessor_uuid=before))

    def fetch(self) -> None:
        number = self.chance.randrange(3)
        self._took(number, self.workers[number].fetch(self.chance.randint(1, 4), timeout=0))

    def finish(self) -> None:
        number = self.chance.randrange(3)
        some = self.chance.sample(
            self.hands[number], self.chance.randint(0, len(self.hands[number]))
        )
        ways: list[Callable[[Delivery], Result]] = [ended, ended, retried, back]
        results = [self.chance.choice(ways)(each) for each in some]
        self.hands[number] = [each for each in self.hands[number] if each not in some]
        accepted, more = self.workers[number].finish(results, fetch=self.chance.randint(0, 3))
        self._account(results, accepted)
        self._took(number, more)

    def die(self) -> None:
        number = self.chance.randrange(3)
        self.workers[number].renew({}, lease=NO_TIME)
        self.hands[number] = []

    def recover(self) -> None:
        self.workers[0].recover(lambda delivery: self.chance.choice([back, retried])(delivery))

    def end(self) -> None:
        for worker in self.workers:
            worker.renew({}, lease=NO_TIME)
        rest(0.005)
        last = self.workers[0] = self._make("last")
        for _ in range(100):
            self.recover()
            while taken := fetch_all(last):
                self._took(0, taken)
                results = [ended(each) for each in taken]
                self._account(results, last.finish(results)[0])
            if all(self.over[each] for each in self.jobs):
                return

    def _add(self, job: Any) -> None:
        self.jobs[job.uuid] = job
        adding.add(self.redis, self.keys, job)

    def _open(self) -> str | None:
        found = [uuid for uuid in self.jobs if not self.over[uuid]]
        return self.chance.choice(found) if found else None

    def _took(self, number: int, taken: list[Delivery]) -> None:
        for uuid in ids(taken):
            job = self.jobs[uuid]
            assert not self.over[uuid]
            assert not job.parent_uuid or self.over[job.parent_uuid], (
                "a child begins when its parent's run is over"
            )
            assert not job.predecessor_uuid or self._done(job.predecessor_uuid), (
                "an heir when all children are done"
            )
        self.hands[number] += taken

    def _done(self, uuid: str) -> bool:
        below = [each for each in self.jobs.values() if each.parent_uuid == uuid]
        return bool(self.over[uuid]) and all(self._done(each.uuid) for each in below)

    def _account(self, results: list[Result], accepted: list[bool]) -> None:
        for result, yes in zip(results, accepted, strict=True):
            if yes and result.end is not None and result.end.state.terminal:
                self.over[result.delivery.job.id] += 1


@pytest.mark.parametrize("seed", range(6))
def test_every_job_of_a_tree_ends_once_and_in_its_order(
    redis: Client, keys: Keys, make_queue: MakeQueue, seed: int
) -> None:
    world = World(redis, keys, make_queue, seed)
    for _ in range(STEPS):
        world.step()
    world.end()
    assert world.over == Counter(list(world.jobs))
    assert world.jobs
    ignored = ("workers:active", "queues:active", ":workers")
    assert [key for key in contents(redis) if not key.endswith(ignored)] == []
