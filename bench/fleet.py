"""A BullMQ queue that two workers share: a Python and a Node worker next to two Node workers.

    python bench/fleet.py                  # 5 pairs
    python bench/fleet.py --reps 1 --seconds 0.5

3,000 jobs are added to a paused queue, 3 % of them slow; the others only write 16 bytes. The time
runs from the resumption of the queue until all jobs are completed. Both fleets are measured in
turns. The ratio is that of a pair: above 1, the fleet with Python is faster. Each worker has
--concurrency slots. The server is on CPU 0, the workers are on both.
"""

import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import harness
import queues
from harness import Peer, Pins, Redis, Stamps, say

from scheduler.bullmq import NewJob, Queue

LIMIT_S = 120.0
WARM_UP_JOBS = 200


def options():
    parser = harness.arguments(__doc__)
    parser.set_defaults(reps=5)
    parser.add_argument("--jobs", type=int, default=3_000, help="jobs of a measurement")
    parser.add_argument("--slow", type=float, default=0.03, help="share of slow jobs")
    parser.add_argument("--seconds", type=float, default=0.1, help="duration of a slow job")
    parser.add_argument("--concurrency", type=int, default=16, help="slots of each worker")
    parser.add_argument("--kind", choices=("sync", "async"), default="sync", help="our handlers")
    return parser.parse_args()


class Bench:
    """Measures how long a fleet takes for all jobs."""

    def __init__(self, chosen, server: Redis, folder: Path) -> None:
        self.chosen, self.server, self.pins = chosen, server, Pins.of(chosen.pin)
        self.stamps = Stamps(folder / "fleet-stamps")
        variables = {
            "BENCH_URL": server.url,
            "BENCH_STAMPS": str(self.stamps.path),
            "BENCH_WORKERS": str(chosen.concurrency),
            "BENCH_CONCURRENCY": str(chosen.concurrency),
        }
        ours = "ours async" if chosen.kind == "async" else "ours"
        names, log = [ours, "node-bullmq"], folder / "fleet-log"
        peers = queues.peers_of("redis", names, variables, log, ours="ours_bullmq")
        if len(peers) < len(names):
            sys.exit("BullMQ for Node is not installed")
        self.python, self.node = peers

    def seconds(self, fleet: list[Peer]) -> float:
        """Return the seconds from the resumption of the queue to the last completed job."""
        harness.quiet(self.chosen.patience)
        self.server.reset()
        self.stamps.clear()
        first, second = fleet
        with (
            Queue("bench", self.server.url) as queue,
            first.serving(cpus=self.pins.clients),
            second.serving(cpus=self.pins.clients),
        ):
            self._run(queue, WARM_UP_JOBS, 0)
            return self._run(queue, self.chosen.jobs, round(self.chosen.jobs * self.chosen.slow))

    def _run(self, queue: Queue, count: int, slow_count: int) -> float:
        kind, rest = self.chosen.kind, self.chosen.seconds
        slow = set(random.Random(1).sample(range(count), slow_count))
        data = [{"number": n} | ({"seconds": rest} if n in slow else {}) for n in range(count)]
        queue.pause()
        queue.add_many([NewJob(kind, each, removeOnComplete=True) for each in data])
        began = time.monotonic()
        queue.resume()
        left = "redis.call('LLEN', 'bull:bench:wait') + redis.call('LLEN', 'bull:bench:active')"
        end = began + LIMIT_S
        while self.server.ask(left):
            if time.monotonic() > end:
                raise RuntimeError(f"{self.server.ask(left)} of {count} jobs are left")
            time.sleep(0.005)
        return time.monotonic() - began


def main() -> None:
    chosen = options()
    ratios = []
    with tempfile.TemporaryDirectory() as folder, Redis(Pins.of(chosen.pin).server) as server:
        bench = Bench(chosen, server, Path(folder))
        for _ in range(chosen.reps):
            with harness.elsewhere() as busy:
                mixed = bench.seconds([bench.python, bench.node])
                alone = bench.seconds([bench.node, bench.node])
            ratios.append(alone / mixed)
            say(
                f"Python and Node {mixed:.3f} s, two of Node {alone:.3f} s, ratio "
                f"{ratios[-1]:.2f}; load {os.getloadavg()[0]:.1f}, elsewhere {busy():.2f} cores"
            )
    print(
        f"{chosen.jobs:,} jobs, {chosen.slow:.0%} take {chosen.seconds:g} s, {chosen.concurrency} "
        f"slots each: Python and Node finish {harness.spread(ratios)} times as fast as two of Node "
        f"(median {statistics.median(ratios):.2f} of {len(ratios)} pairs)"
    )


if __name__ == "__main__":
    main()
