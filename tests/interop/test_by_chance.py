"""Whatever is done to a queue, in whatever order, what we leave in Redis is what BullMQ on Node
leaves.
"""

from random import Random
from typing import Any

import pytest

from scheduler.embedded.redis import EmbeddedRedis
from tests.interop.keyspace import Keyspace, differences, dump
from tests.interop.peers import Peer
from tests.interop.scenarios import POLICIES, Side
from tests.interop.sides import NodeSide, OurSide

WAITING = [
    each for each in POLICIES if each != "continueParentOnFailure"
]  # that parent runs when a place is free
STATES = ("completed", "failed", "delayed", "wait", "prioritized")


class Chance:
    """Steps that chance chose; the same seed chooses the same."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._paused = False

    def run(self, side: Side, steps: int) -> list[str]:
        """Do them, and say which."""
        kinds = (
            self._add,
            self._add,
            self._add,
            self._bulk,
            self._flow,
            self._steer,
            self._work,
            self._work,
        )
        return [self._add(side), *(self._random.choice(kinds)(side) for _ in range(steps))]

    def _add(self, side: Side) -> str:
        data, opts = self._data(), self._opts()
        side.add("job", data, **opts)
        return f"add {data} {opts}"

    def _bulk(self, side: Side) -> str:
        jobs = [("job", self._data(), self._opts()) for _ in range(3)]
        side.add_many(jobs)
        return f"add {jobs}"

    def _flow(self, side: Side) -> str:
        flow = self._node(2)
        side.flow(flow)
        return f"flow {flow}"

    def _steer(self, side: Side) -> str:
        choice = self._random
        call: tuple[Any, ...] = choice.choice(
            (
                ("resume",) if self._paused else ("pause",),
                ("resume",) if self._paused else ("pause",),
                ("drain",),
                ("drain", True),
                ("clean", choice.choice((0, 60_000)), 0, choice.choice(STATES)),
            )
        )
        self._paused = {"pause": True, "resume": False}.get(call[0], self._paused)
        side.queue(*call)
        return str(call)

    def _work(self, side: Side) -> str:
        if self._paused:
            self._paused = False
            side.queue("resume")
        if not side.idle():
            side.work_off()
        return "work"

    def _node(self, depth: int) -> dict[str, Any]:
        choice = self._random
        children = [self._node(depth - 1) for _ in range(choice.randint(1, 2))] if depth else []
        priority = (
            0 if children else choice.randint(0, 2)
        )  # Node forgets that of a parent whose child is removed
        opts = self._few(
            {
                "attempts": 2,
                "priority": priority,
                choice.choice(WAITING): True,
                "delay": 0,
                "removeOnComplete": True,
                "removeOnFail": True,
            }
        )
        return {
            "name": "job",
            "queueName": "mail",
            "data": self._data(),
            "opts": opts,
            "children": children,
        }

    def _data(self) -> dict[str, Any]:
        choice = self._random
        return choice.choice(
            (
                {"value": choice.choice((1, "text", None, {"a": [1]}))},
                {"fails": choice.randint(1, 3), "value": 2},
                {"fatal": "broken"},
                {},
            )
        )

    def _opts(self) -> dict[str, Any]:
        choice = self._random
        unique = {"id": choice.choice("xy")} | self._few(
            {"ttl": 60_000, "extend": True, "replace": True}
        )
        unique |= self._few({"reschedule": True})
        backoff = {
            "type": choice.choice(("fixed", "exponential")),
            "delay": choice.choice((0, 60_000)),
        }
        return self._few(
            {
                "attempts": choice.randint(0, 3),
                "backoff": backoff,
                "priority": choice.randint(0, 3),
                "lifo": True,
                "delay": choice.choice((0, 60_000)),
                "jobId": choice.choice(("a", "b-c", "x:y:z")),
                "deduplication": unique,
                "removeOnComplete": choice.choice((True, False, 0, {"age": 3600}, {"count": 50})),
                "removeOnFail": choice.choice((True, False, 0, {"age": 3600, "count": 50})),
                "keepLogs": 5,
            }
        )

    def _few(self, options: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in options.items() if self._random.random() < 0.25}


class Turns:
    """Each step is done by one of several, as chance has it."""

    def __init__(self, seed: int, *sides: Side) -> None:
        self._random = Random(seed)
        self._sides = sides

    def __getattr__(self, name: str) -> Any:
        return getattr(self._random.choice(self._sides), name)


@pytest.mark.parametrize("road", ["alone", "taking turns with Node"])
def test_chance_finds_no_difference(
    road: str, node: Peer, redis: Any, redis_server: EmbeddedRedis, full: bool
) -> None:
    theirs, ours = NodeSide(redis, node), OurSide(redis, redis_server.url)
    for seed in range(400 if full else 12):
        redis.flushall()
        Chance(seed).run(theirs, steps=12)
        wanted = _lasting(dump(redis))
        redis.flushall()
        side: Any = ours if road == "alone" else Turns(seed, theirs, ours)
        said = Chance(seed).run(side, steps=12)
        found = differences(_lasting(dump(redis)), wanted)
        assert not found, "\n".join([f"seed {seed}", *said, *found])


def _lasting(found: Keyspace) -> Keyspace:
    """Without the marker: who waits takes it away."""
    return {key: value for key, value in found.items() if not key.startswith("bull:mail:marker")}
