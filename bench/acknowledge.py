"""How soon a result reaches Redis while all other slots of a worker are busy.

    python bench/acknowledge.py                 # concurrency 2, 10, 50; sync and async handlers
    python bench/acknowledge.py --quick

All slots but one run handlers that do not end. Quick jobs are pushed one after another. The time
runs from the moment at which the handler returns, on the clock of the machine, until a client that
waits for the stream of results has received the entry: so it includes the way to that client. The
queue has the standard dialect. The server is on CPU 0, the worker on CPU 1. The bar is 5 ms.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import harness
import orjson
from harness import Peer, Pins, Redis, say

from scheduler import Worker, handler
from scheduler.dialects.client import Client
from scheduler.dialects.opening import open_queue
from scheduler.dialects.standard.keys import Keys
from scheduler.model.attempts import QueuedJob
from scheduler.model.ids import new_ids
from scheduler.model.labels import Priority

LEDGER, EPOCH, BAR_MS = "bench", "1", 5.0
FOREVER_S = 3600.0
LIMIT_S = 60.0


@handler("sync", queue="bench")
def quick(_, __):
    return time.time()


@handler("async", queue="bench")
async def quick_async(_, __):
    return time.time()


@handler("sync busy", queue="bench")
def busy(_, __):
    time.sleep(FOREVER_S)


@handler("async busy", queue="bench")
async def busy_async(_, __):
    await asyncio.sleep(FOREVER_S)


def made(kind: str, count: int) -> list[QueuedJob]:
    now = datetime.now(UTC)
    return [
        QueuedJob(
            id=str(key),
            tenant="bench",
            type=kind,
            queue="bench",
            priority=Priority.NORMAL,
            feed=1,
            attempt=0,
            form="json",
            payload=b"null",
            policy=None,
            tags=None,
            correlation_id=None,
            created_at=now,
            expires_at=now + timedelta(days=1),
            installation=LEDGER,
        )
        for key in new_ids(count)
    ]


def measure(chosen, server: Redis, folder: Path, concurrency: int, kind: str) -> list[float]:
    """Return the milliseconds of each quick job."""
    server.reset()
    queue = open_queue(Client(server.url), "bench", installation=LEDGER)
    queue.begin(EPOCH)
    variables = {"BENCH_URL": server.url, "BENCH_CONCURRENCY": str(concurrency)}
    worker = Peer("worker", Path(sys.executable), "../acknowledge.py", variables, folder / "log")
    stream, last, found = Keys.from_queue("bench").results(LEDGER), "0-0", []
    with worker.serving(cpus=Pins.of(chosen.pin).client):
        queue.push(made(f"{kind} busy", concurrency - 1), epoch=EPOCH)
        if not harness.until(lambda: queue.depths().running == concurrency - 1, LIMIT_S):
            raise RuntimeError("the other slots are not busy")
        for _ in range(chosen.samples + 20):
            queue.push(made(kind, 1), epoch=EPOCH)
            answer = server.client.xread({stream: last}, block=int(LIMIT_S * 1000))
            received = time.time()
            [[_, [(last, fields)]]] = answer
            [end] = orjson.loads(fields[b"1"])
            found.append((received - float(end[-1]["result"])) * 1000)  # when the handler returned
            time.sleep(0.005)
    return found[20:]


def options():
    parser = harness.arguments(__doc__)
    parser.add_argument("--samples", type=int, default=500, help="quick jobs of a measurement")
    parser.add_argument("--concurrency", default="2,10,50", help="slots of the worker")
    chosen = parser.parse_args()
    chosen.samples = 50 if chosen.quick else chosen.samples
    return chosen


def serve() -> None:
    concurrency = int(os.environ["BENCH_CONCURRENCY"])
    print("ready", flush=True)
    Worker(os.environ["BENCH_URL"], ["bench"], concurrency=concurrency).run()


def main() -> None:
    chosen, rows = options(), []
    with tempfile.TemporaryDirectory() as folder, Redis(Pins.of(chosen.pin).server) as server:
        for concurrency in map(int, chosen.concurrency.split(",")):
            for kind in ("sync", "async"):
                harness.quiet(chosen.patience)
                with harness.elsewhere() as elsewhere:
                    found = measure(chosen, server, Path(folder), concurrency, kind)
                p50, p99 = (harness.percentile(found, share) for share in (0.5, 0.99))
                verdict = "ok" if p99 <= BAR_MS else "missed"
                figures = (f"{p50:.2f}", f"{p99:.2f}", f"{max(found):.2f}", f"{elsewhere():.2f}")
                rows.append((f"{concurrency}, {kind}", *figures, verdict))
                say(" | ".join(rows[-1]))
    head = ("concurrency, handlers", "p50, ms", "p99, ms", "max, ms", "elsewhere, cores", "p99")
    print(harness.table(head, rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["info"]:
        print(json.dumps({}))
    elif sys.argv[1:2] == ["serve"]:
        serve()
    else:
        main()
