"""What it costs to be seen: CPU of a worker for a job that does nothing, bare, with metrics and
logs, and with traces.

    python bench/observe.py                 # some minutes
    python bench/observe.py --quick         # a look of a minute

Each run is a fresh worker process that drains a queue of Redis, on CPU 1; Redis is on CPU 0. "seen"
has the default logs, metrics, and somebody who scrapes them every second; "traced" also a span for
every attempt, given to an exporter that throws it away. Runs are interleaved, so that a slow minute
hits all; the figure is the median, and beside it the median of the differences to the bare run of
the same round. The bar is printed, never asserted.
"""

import json
import logging
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import harness
from harness import Pins, Redis

from scheduler import Worker, handler
from scheduler.dialects.client import Client
from scheduler.dialects.opening import open_queue
from scheduler.model.attempts import QueuedJob
from scheduler.model.labels import Priority

MODES = ("bare", "seen", "traced")
BAR = 0.10
CONCURRENCY = 10
SCRAPE_EVERY = 1.0


def fill(url: str, count: int) -> None:
    """Put jobs into the queue, as a feeder does."""
    client = Client(url)
    client.call("FLUSHALL")
    queue = open_queue(client, "bench", {"dialect": "standard"}, installation="bench")
    queue.begin("1")
    now = datetime.now(UTC)
    for start in range(0, count, 1000):
        queue.push(
            [_job(number, now) for number in range(start, min(start + 1000, count))], epoch="1"
        )
    client.close()


def _job(number: int, now: datetime) -> QueuedJob:
    return QueuedJob(
        id=str(uuid4()),
        tenant="bench",
        type="nothing",
        queue="bench",
        priority=Priority.NORMAL,
        feed=1,
        attempt=0,
        form="json",
        payload=b"%d" % number,
        policy=None,
        tags=None,
        correlation_id=None,
        created_at=now,
        expires_at=now + timedelta(days=1),
        installation="bench",
    )


def work(mode: str, url: str, count: int) -> None:
    """Be the worker: say where one may scrape, drain, and say how much CPU that took."""
    done, left = threading.Event(), iter(range(1, count))

    @handler("nothing", queue="bench")
    def nothing(_, __):
        if next(left, None) is None:
            done.set()

    with ExitStack() as stack:
        logging.getLogger("scheduler").setLevel(logging.CRITICAL)
        worker = Worker(url, ["bench"], concurrency=CONCURRENCY)
        address = None
        if mode != "bare":
            from scheduler.observe import logs
            from scheduler.observe.serving import SAMPLE, Serving

            logs.configure("info")
            serving = stack.enter_context(Serving("127.0.0.1", 0, ["bench"], SAMPLE))
            serving.watch(worker)
            address = serving.address
        if mode == "traced":
            _trace()
        print(json.dumps(address), flush=True)
        began = time.process_time()
        worker.start()
        if not done.wait(300):
            raise RuntimeError("the jobs did not end")
        worker.stop()
        print(json.dumps((time.process_time() - began) / count * 1e6), flush=True)


def _trace() -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    from scheduler.observe import traces

    class Nowhere(SpanExporter):
        def export(self, _):
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    traces.configure(provider)


def measured(mode: str, url: str, count: int, cpus: str | None) -> float:
    """Run a worker, scrape it meanwhile, and return its microseconds of CPU for a job."""
    fill(url, count)
    command = [
        *(["taskset", "-c", cpus] if cpus else []),
        sys.executable,
        __file__,
        "--work",
        mode,
        url,
        str(count),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        address = json.loads(process.stdout.readline())
        over = threading.Event()
        scraper = threading.Thread(target=_scrape, args=(address, over))
        scraper.start()
        found = process.stdout.readline()
        over.set()
        scraper.join()
    if process.returncode or not found:
        raise RuntimeError(f"the worker {mode} failed with {process.returncode}")
    return json.loads(found)


def _scrape(address: str | None, over: threading.Event) -> None:
    while address and not over.wait(SCRAPE_EVERY / 2):
        try:
            urllib.request.urlopen(f"{address}/metrics", timeout=5).read()
        except OSError:
            return
        over.wait(SCRAPE_EVERY / 2)


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    parser = harness.arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=20_000, help="that each run drains")
    chosen = parser.parse_args()
    rounds = 3 if chosen.quick else max(chosen.reps, 11)
    pins = Pins.of(chosen.pin)
    figures: dict[str, list[float]] = {mode: [] for mode in MODES}
    with Redis(pins.server) as redis:
        for mode in MODES:
            measured(
                mode, redis.url, min(chosen.jobs, 5000), pins.client
            )  # warm: byte code, scripts
        for number in range(rounds):
            for place in range(len(MODES)):
                mode = MODES[(place + number) % len(MODES)]
                figures[mode].append(measured(mode, redis.url, chosen.jobs, pins.client))
    print(f"CPU us/job of the worker, median of {rounds} interleaved runs of {chosen.jobs:,} jobs")
    bare = statistics.median(figures["bare"])
    for mode in MODES:
        middle = statistics.median(figures[mode])
        more = statistics.median(
            ours - theirs for ours, theirs in zip(figures[mode], figures["bare"], strict=True)
        )
        spread = f"{min(figures[mode]):.1f} to {max(figures[mode]):.1f}"
        print(f"  {mode:7} {middle:6.1f}  ({spread})  {100 * more / bare:+5.1f} %")
    seen = (
        statistics.median(a - b for a, b in zip(figures["seen"], figures["bare"], strict=True))
        / bare
    )
    verdict = "met" if seen < BAR else "MISSED"
    print(
        f"metrics and default logs: {100 * seen:+.1f} % (bar: below {100 * BAR:.0f} %): {verdict}"
    )


if __name__ == "__main__":
    main()
