"""CPU of Redis per job in the reliable and the standard dialect, pushed, leased and finished.

    python bench/layouts/dialects.py [--reps 3] [--jobs 20000] [--servers redis-server]

CPU is the server's own user and system time. Other work on the machine slows the server down, so
compare figures of one run only: the contestants take turns, and the least of each is shown.
"types" is the standard dialect with a worker that names ten types.
"""

import argparse
import os
import subprocess
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import redis

from scheduler.dialects.client import Client
from scheduler.dialects.interface import EVERY_TYPE, Handled, Result
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.model.attempts import AttemptEnd, QueuedJob
from scheduler.model.labels import Priority
from scheduler.model.states import State

NOW = datetime.now(UTC)
TYPES = Handled(types=["send-receipt", *(f"type-{number}" for number in range(9))])
CONTESTANTS = {
    "reliable": (ReliableQueue, EVERY_TYPE),
    "standard": (StandardQueue, EVERY_TYPE),
    "types": (StandardQueue, TYPES),
}


def make_job(tenant: str, type_: str = "send-receipt") -> QueuedJob:
    values = (str(uuid4()), tenant, type_, "mail", Priority.NORMAL, 1, 0, "json", b"{}" * 50)
    return QueuedJob(*values, None, None, None, NOW, NOW + timedelta(days=1), "3f1e")


def completed(delivery) -> Result:
    job = delivery.job
    values = (job.tenant, job.id, job.feed, delivery.attempt, State.COMPLETED)
    return Result(delivery, AttemptEnd(*values, delivery.started_at, delivery.started_at, "w"))


def cpu(client: redis.Redis) -> float:
    found = client.info("cpu")
    return found["used_cpu_user"] + found["used_cpu_sys"]


def measure(client: redis.Redis, url: str, name: str, jobs: int, tenants: int, slots: int) -> dict:
    kind, handled = CONTESTANTS[name]
    client.flushall()
    opened = Client(url)
    queue = kind(opened, "mail", worker="worker-host-12345-ab", installation="3f1e")
    pushed = [make_job(f"tenant-{number % tenants}") for number in range(jobs)]
    queue.depths()
    empty, before = client.info("memory")["used_memory"], cpu(client)
    queue.push(pushed, epoch="")
    figures = {"push": (cpu(client) - before) / jobs * 1e6}
    figures["bytes"] = (client.info("memory")["used_memory"] - empty) / jobs
    before, done, taken = cpu(client), 0, queue.fetch(slots, timeout=0, handled=handled)
    while taken:
        done += len(taken)
        ends = [completed(each) for each in taken]
        _, taken = queue.finish(ends, fetch=slots, handled=handled)
    figures["finish"] = (cpu(client) - before) / jobs * 1e6
    assert done == jobs
    before, settled = cpu(client), 0
    while settled < jobs:
        read = queue.outcomes(1000, timeout=0)
        queue.acknowledge(read)
        settled += sum(len(each.ends) for each in read)
    figures["acknowledge"] = (cpu(client) - before) / jobs * 1e6
    opened.close()
    return figures


def parking(client: redis.Redis, url: str, jobs: int) -> dict:
    """Park jobs of a type that the worker does not handle, then take them as one that does."""
    client.flushall()
    opened = Client(url)
    queue = StandardQueue(opened, "mail", worker="worker-host-12345-ab", installation="3f1e")
    queue.push([make_job("acme", "other") for _ in range(jobs)], epoch="")
    before = cpu(client)
    while client.exists("jobqueue:{mail}:waiting"):
        queue.fetch(50, timeout=0, handled=TYPES)
    figures = {"park": (cpu(client) - before) / jobs * 1e6}
    before = cpu(client)
    taken = queue.fetch(50, timeout=0)
    while taken:
        _, taken = queue.finish([completed(each) for each in taken], fetch=50)
    figures["take parked and finish"] = (cpu(client) - before) / jobs * 1e6
    opened.close()
    return figures


def compare(client: redis.Redis, url: str, options: argparse.Namespace) -> None:
    found: dict = defaultdict(lambda: defaultdict(list))
    for _ in range(options.reps):
        for tenants in (1, 1000):
            for slots in (1, 10, 50):
                for name in CONTESTANTS:
                    one = measure(client, url, name, options.jobs, tenants, slots)
                    for figure, value in one.items():
                        found[tenants, slots, name][figure].append(value)
        for figure, value in parking(client, url, options.jobs).items():
            found["parked"][figure].append(value)
    print(f"\n{client.info('server')['redis_version']}: us of the server per job")
    print("| tenants | slots | dialect | push | lease and finish | acknowledge | bytes |")
    print("|---|---|---|---|---|---|---|")
    parked = found.pop("parked")
    for (tenants, slots, name), figures in found.items():
        cells = (min(figures[each]) for each in ("push", "finish", "acknowledge"))
        us = " | ".join(f"{each:.1f}" for each in cells)
        print(f"| {tenants} | {slots} | {name} | {us} | {min(figures['bytes']):.0f} |")
    print("\n" + ", ".join(f"{name} {min(values):.1f}" for name, values in parked.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--servers", default="redis-server")
    options = parser.parse_args()
    for server in options.servers.split(","):
        with tempfile.TemporaryDirectory() as folder:
            socket = f"{folder}/s"
            command = [server, "--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
                while not os.path.exists(socket):
                    time.sleep(0.05)
                compare(redis.Redis(unix_socket_path=socket), f"unix://{socket}", options)
                process.terminate()


if __name__ == "__main__":
    main()
