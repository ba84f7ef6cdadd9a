"""What the adversary will do, and when: a timeline that follows from a seed and a length, and from
nothing else.

Lanes go on side by side; within a lane one fault is over before the next begins.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

LEASE = 4.0  # seconds: of instances and of workers
CONCURRENCY = 50  # of a worker; a process has one for each queue
INSTANCES = ("instance-1", "instance-2", "instance-3")
WORKERS = ("worker-1", "worker-2", "worker-3")
SUBMITTERS = ("submitter-1", "submitter-2")
SERVERS = ("postgres", "redis")
QUEUES = {
    "work": {"dialect": "standard"},
    "video": {"dialect": "bullmq"},
    "go": {"dialect": "conveyor"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: when it begins, in seconds after the start, how long it lasts, and whom it hits.

    `detail`: which way of it, where there are several.
    """

    lane: str
    kind: str
    at: float
    seconds: float
    targets: tuple[str, ...]
    detail: str = ""

    def __str__(self) -> str:
        words = f"{self.kind} {self.detail}".strip()
        return f"{self.at:7.1f} s  {words} ({', '.join(self.targets)}) for {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Lane:
    """Faults of one kind of victim; each kind comes once before any comes again."""

    victims: tuple[str, ...]
    kinds: tuple[tuple[str, str], ...]
    gap: tuple[float, float]


_ROADS = tuple(
    (f"partition from {server}", how) for server in SERVERS for how in ("cut", "hang", "drop")
)
LANES = {
    "instances": Lane(
        INSTANCES, (("kill", ""), ("kill", ""), ("suspend", ""), ("clock", ""), *_ROADS), (2.0, 8.0)
    ),
    "workers": Lane(
        WORKERS,
        (("kill", ""), ("kill", ""), ("suspend", ""), ("clock", ""), *_ROADS[3:]),
        (2.0, 8.0),
    ),
    "submitters": Lane(
        SUBMITTERS, (("kill", ""), ("suspend", ""), ("clock", ""), *_ROADS), (3.0, 10.0)
    ),
    "postgres": Lane(
        ("postgres",),
        (("restart", "fast"), ("restart", "immediate"), ("no space", "disk")),
        (6.0, 18.0),
    ),
    "redis": Lane(
        ("redis",),
        (
            ("restart", "in order"),
            ("restart", "killed"),
            ("restart", "empty"),
            ("restart", "last second lost"),
            ("flush", ""),
            ("no space", "memory"),
            ("no space", "disk"),
        ),
        (4.0, 12.0),
    ),
    "queues": Lane(tuple(QUEUES), (("pause", ""),), (2.0, 6.0)),
}
LASTS: dict[str, Callable[[random.Random], float]] = {
    "kill": lambda rng: rng.uniform(0.0, 3.0),
    "suspend": lambda rng: rng.uniform(1.1, 2.0) * LEASE,
    "clock": lambda rng: 0.0,
    "partition from postgres": lambda rng: rng.uniform(0.5, 8.0),
    "partition from redis": lambda rng: rng.uniform(0.5, 8.0),
    "restart": lambda rng: rng.uniform(0.1, 3.0),
    "flush": lambda rng: 0.0,
    "no space": lambda rng: rng.uniform(1.0, 4.0),
    "pause": lambda rng: rng.uniform(0.5, 2.5),
}


def timeline(seed: int, seconds: float) -> list[Fault]:
    """List the faults of a run in which the adversary has so long."""
    lanes = (
        _lane(random.Random(f"{seed} {name}"), name, lane, seconds) for name, lane in LANES.items()
    )
    return sorted(chain.from_iterable(lanes), key=lambda fault: fault.at)


def _lane(rng: random.Random, name: str, lane: Lane, seconds: float) -> Iterator[Fault]:
    at = rng.uniform(*lane.gap) / 2
    kinds = _shuffled_for_ever(rng, lane.kinds)
    while True:
        kind, detail = next(kinds)
        lasts = LASTS[kind](rng)
        # Most often one of them, now and then all at once.
        count = len(lane.victims) if kind in ("kill", "suspend") and rng.random() < 0.15 else 1
        targets = tuple(sorted(rng.sample(lane.victims, count)))
        if kind == "clock":
            detail = f"{rng.choice((-86_400, -3600, -5, 0, 5, 3600, 86_400)):+d} s"
        if at + lasts > seconds:
            return
        yield Fault(lane=name, kind=kind, at=at, seconds=lasts, targets=targets, detail=detail)
        at += lasts + rng.uniform(*lane.gap)


def _shuffled_for_ever(
    rng: random.Random, kinds: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    while True:
        yield from rng.sample(kinds, len(kinds))
