"""A worker in Go that dies between any two of its commands: ours go on with all that it has not
lost itself.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from scheduler.dialects.client import Client
from scheduler.dialects.conveyor import add as adding
from scheduler.dialects.conveyor.keys import Keys
from scheduler.dialects.conveyor.queue import ConveyorQueue
from scheduler.embedded.redis import EmbeddedRedis
from tests.conveyor.conftest import contents, new
from tests.conveyor.encoder import decode
from tests.conveyor.go_peer import Peer
from tests.conveyor.work import FAILS_ONCE, log
from tests.dialects.values import back, ended, fetch_all, ids

KEYS = Keys("upstream")
LONG_AGO = 1
# After these it has a job in its hands and nowhere else, or where nobody finds it; or it deleted
# what waits for one.
HANDS = {
    "works": {"brpop", "set", "rpop", "sadd", "zrem"},
    "prunes": {"delete", "srem", "lpush", "spop", "zrem"},
}


class Died(Exception):
    """The worker in Go is no more."""


class Mortal:
    """A connection that carries out so many commands, and no more."""

    def __init__(self, redis: Any, commands: int) -> None:
        self._redis, self._left = redis, commands
        self.last = ""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self._left == 0:
                raise Died
            self._left -= 1
            self.last = name
            return getattr(self._redis, name)(*args, **options)

        return call


class World:
    """A parent, two children of which one fails once, and an heir; a worker in Go, and workers of
    ours.
    """

    def __init__(self, redis: Client, url: str, commands: int) -> None:
        redis.call("FLUSHALL")
        self._redis, self._log = redis, log(url)
        self.parent = parent = new(queue="work")
        self.children = [
            new(queue="work", parent_uuid=parent.uuid, payload=each) for each in (b"", FAILS_ONCE)
        ]
        self.heir = new(queue="work", predecessor_uuid=parent.uuid)
        self.jobs = {job.uuid for job in (parent, *self.children, self.heir)}
        for job in (parent, *self.children, self.heir):
            adding.add(redis, KEYS, job)
        self.peer = Peer(url, "work", 0)
        self.connection = self.peer.redis = Mortal(self.peer.redis, commands)
        self.silent, self._queue = (
            ConveyorQueue(redis, "work", worker=each, keys="upstream") for each in "so"
        )
        self._ran: list[str] = []

    def works(self) -> None:
        """The worker in Go takes and ends what there is."""
        self.peer.heartbeat()
        while self._redis.call("EXISTS", KEYS.queue("work"), KEYS.scheduled):
            if self._redis.call("EXISTS", KEYS.queue("work")):
                self.peer.work_one()
            self._hurry()
            self.peer.pop_scheduled()

    def prunes(self) -> None:
        """The worker in Go takes back what a silent one of ours holds, and then works."""
        fetch_all(self.silent)
        self.silent.renew({}, lease=timedelta())
        self._redis.call("ZADD", "conv:workers:active", LONG_AGO, "s:work")
        self.peer.prune()

    def found(self) -> set[str]:
        """The jobs that any worker comes across, or that are done."""
        there = contents(self._redis)
        ends = (KEYS.queue("work"), ":children", ":onComplete")
        lists = [value for key, value in there.items() if key.endswith(ends)]
        raws = [raw for value in lists for raw in value] + [
            raw for raw, _ in there.get(KEYS.scheduled, [])
        ]
        sets = [
            value
            for key, value in there.items()
            if key.startswith(("conv:worker:active", "conv:jobs:active"))
        ]
        held = {each.decode() for value in sets for each in value}
        return {decode(raw)[1].decode() for raw in raws} | {
            each for each in held if KEYS.job(each) in there
        }

    def wait_for(self, lost: set[str]) -> set[str]:
        """The jobs that begin when those have ended."""
        return {self.heir.uuid} | (
            {job.uuid for job in self.children} if self.parent.uuid in lost else set()
        )

    def take_over(self) -> None:
        """Ours do what there is to do."""
        self._redis.call("ZADD", "conv:workers:active", "XX", LONG_AGO, self.peer.name)
        for _ in range(6):
            self._queue.recover(back)
            self._hurry()
            taken = fetch_all(self._queue)
            self._ran += ids(taken)
            assert all(self._queue.finish([ended(each) for each in taken])[0])

    def done(self) -> list[str]:
        """The jobs that were done, in their order."""
        lines = [line.split() for line in self._log.lrange("log", 0, -1)]
        return [uuid for what, uuid, _ in lines if what == "end"] + self._ran

    def _hurry(self) -> None:
        for raw in self._redis.call("ZRANGE", KEYS.scheduled, 0, -1):
            self._redis.call("ZADD", KEYS.scheduled, LONG_AGO, raw)


def deaths(redis: Client, url: str, what: str) -> Iterator[World]:
    """Worlds in which the worker in Go died after one command, after two, and so on."""
    for commands in count():
        world = World(redis, url, commands)
        try:
            getattr(world, what)()
        except Died:
            yield world
        else:
            return


@pytest.mark.parametrize("what", ["works", "prunes"])
def test_whenever_a_worker_in_go_dies_ours_go_on(
    redis: Client, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr("scheduler.dialects.conveyor.queue.STUCK_FOR", timedelta())
    died = 0
    for world in deaths(redis, redis_server.url, what):
        died += 1
        lost = world.jobs - world.found() - {*world.done()}
        assert not lost or world.connection.last in HANDS[what]
        world.take_over()
        done = world.done()
        if lost:
            assert {*done} >= world.jobs - lost - world.wait_for(lost)
            continue
        assert {*done} == world.jobs, world.connection.last
        assert done.count(world.heir.uuid) == 1
        assert done[-1] == world.heir.uuid
        active = redis.call("SMEMBERS", f"{KEYS.base}jobs:active")
        assert (active, redis.call("KEYS", "conv:job:*:*")) == (set(), [])
    assert died > 3
