"""The adversary: does what the timeline says, a thread for each lane, and writes down what it
did.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.crew import Crew
from tests.chaos.house import House
from tests.chaos.pauses import Pause, Pauser
from tests.chaos.plan import Fault


@dataclass(slots=True, kw_only=True)
class Done:
    """A fault as it was: from when until when, on the monotonic clock, and the processes that it hit.

    `forgot`: Redis lost what it had, or a part of that.
    """

    fault: Fault
    begin: float
    over: float = float("inf")
    pids: frozenset[int] = frozenset()
    forgot: bool = False

    @property
    def name(self) -> str:
        """What it is called in tables."""
        who = (
            self.fault.lane
            if self.fault.lane in ("postgres", "redis")
            else self.fault.lane.removesuffix("s")
        )
        detail = "" if self.fault.kind == "clock" else self.fault.detail
        return f"{who}: {self.fault.kind} {detail}".strip()


@dataclass(slots=True)
class Attack:
    """All lanes of a timeline; `failed` has what the adversary itself could not do, `pauses` those
    of queues that were acknowledged.
    """

    house: House
    crew: Crew
    done: list[Done] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)

    def run(self, timeline: Sequence[Fault], began: float) -> list[threading.Thread]:
        """Begin; times of the timeline count from `began`."""
        lanes: dict[str, list[Fault]] = {}
        for fault in timeline:
            lanes.setdefault(fault.lane, []).append(fault)
        threads = [
            threading.Thread(target=self._lane, args=(faults, began), name=name, daemon=True)
            for name, faults in lanes.items()
        ]
        for thread in threads:
            thread.start()
        return threads

    def _lane(self, faults: Sequence[Fault], began: float) -> None:
        for fault in faults:
            time.sleep(max(0.0, began + fault.at - time.monotonic()))
            done = Done(fault=fault, begin=time.monotonic())
            self.done.append(done)
            try:
                self._do(fault, done)
            except Exception as error:
                self.failed.append(f"{fault}: {type(error).__name__}: {error}")
            done.over = time.monotonic()

    def _do(self, fault: Fault, done: Done) -> None:
        if fault.lane in ("postgres", "redis"):
            server = getattr(self.house, fault.lane)
            done.forgot = bool(
                getattr(server, fault.kind.replace(" ", "_"))(fault.detail, fault.seconds)
            )
            return
        if fault.lane == "queues":
            redis = f"redis://127.0.0.1:{self.house.redis.port}/0"
            for name in fault.targets:
                pause = Pauser(self.house.postgres.dsn, redis).pause(name, fault.seconds)
                self.pauses += [] if pause is None else [pause]
            return
        crew = self.crew
        done.pids = frozenset(crew.pid(slot) for slot in fault.targets)
        for slot in fault.targets:
            if fault.kind == "kill":
                crew.kill(slot)
            elif fault.kind == "suspend":
                crew.suspend(slot)
            elif fault.kind == "clock":
                crew.shift(slot, int(fault.detail.removesuffix(" s")))
            else:
                crew.block(slot, fault.kind.removeprefix("partition from "), fault.detail)
        time.sleep(fault.seconds)
        for slot in fault.targets:
            if fault.kind == "kill":
                crew.start(slot)
            elif fault.kind == "suspend":
                crew.wake(slot)
            elif fault.kind.startswith("partition"):
                crew.block(slot, fault.kind.removeprefix("partition from "), "open")
