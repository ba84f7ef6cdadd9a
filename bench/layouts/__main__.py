"""Compare layouts of waiting jobs in Redis: CPU of the server per job, and memory per waiting job.

    python bench/layouts [--reps 5] [--jobs 20000] [--servers redis-server,valkey-server]

Decision 022 has the figures. CPU is the server's own user and system time, so that other work on
the machine does not count. Layouts take turns in every repetition.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
import uuid
from collections import defaultdict
from pathlib import Path

import redis

HERE = Path(__file__).parent
LAYOUTS = ("list", "tenant_lists", "virtual_time")
RECORD = b"1:1:0:160:" + b'["acme","send-receipt",2,"2026-11-18T07:00:00Z"]'.ljust(160) + b"{}" * 50


def scripts(client: redis.Redis, layout: str) -> tuple[str, str]:
    part = (HERE / f"{layout}.lua").read_text()
    return tuple(
        client.script_load((HERE / f"{name}.lua").read_text().replace("-- include", part, 1))
        for name in ("push", "exchange")
    )


def cpu(client: redis.Redis) -> float:
    found = client.info("cpu")
    return found["used_cpu_user"] + found["used_cpu_sys"]


def measure(client: redis.Redis, layout: str, *, jobs: int, tenants: int, slots: int) -> dict:
    client.flushall()
    push, exchange = scripts(client, layout)
    empty, before = client.info("memory")["used_memory"], cpu(client)
    for start in range(0, jobs, 250):
        args = []
        for number in range(start, min(jobs, start + 250)):
            id_, tenant = str(uuid.uuid4()), f"tenant-{number % tenants}"
            args += (id_, 2, tenant, f"1\x1f{id_}\x1fsend-receipt\x1f{tenant}", RECORD)
        client.evalsha(push, 1, "{q}:", *args)
    figures = {"push us": (cpu(client) - before) / jobs * 1e6}
    figures["bytes"] = (client.info("memory")["used_memory"] - empty) / jobs
    before, done, order = cpu(client), [], 0
    while True:
        answer = client.evalsha(exchange, 1, "{q}:", "worker", slots, "", *done)
        if not answer:
            break
        done = answer[::2]
        order += len(done)
    assert order == jobs
    figures["take and finish us"] = (cpu(client) - before) / jobs * 1e6
    return figures


def skipping(client: redis.Redis, jobs: int) -> float:
    """CPU of the server, in microseconds for each job of a full type that a worker passes over."""
    client.flushall()
    push, exchange = scripts(client, "virtual_time")
    for _start in range(0, jobs, 250):
        args = []
        for _ in range(250):
            id_ = str(uuid.uuid4())
            args += (id_, 2, "acme", f"1\x1f{id_}\x1ffull\x1facme", RECORD)
        client.evalsha(push, 1, "{q}:", *args)
    id_ = str(uuid.uuid4())
    client.evalsha(push, 1, "{q}:", id_, 2, "acme", f"1\x1f{id_}\x1ffree\x1facme", RECORD)
    before = cpu(client)
    while not client.evalsha(exchange, 1, "{q}:", "worker", 50, "full"):
        pass
    assert client.zcard("{q}:blocked") == jobs
    return (cpu(client) - before) / jobs * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reps", type=int, default=5)
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
                compare(redis.Redis(unix_socket_path=socket), options, server)
                process.terminate()


def compare(client: redis.Redis, options: argparse.Namespace, server: str) -> None:
    found: dict = defaultdict(lambda: defaultdict(list))
    for _ in range(options.reps):
        for slots in (1, 10, 50):
            for tenants in (1, 1000):
                for layout in LAYOUTS:
                    one = measure(client, layout, jobs=options.jobs, tenants=tenants, slots=slots)
                    for name, value in one.items():
                        found[slots, tenants, layout][name].append(value)
    skip = statistics.median(skipping(client, options.jobs) for _ in range(options.reps))
    print(f"\n{Path(server).name} {client.info('server')['redis_version']}")
    print(
        "| slots | tenants | layout | push us | take and finish us | bytes |\n|---|---|---|---|---|---|"
    )
    for (slots, tenants, layout), figures in found.items():
        cells = [
            statistics.median(figures[name]) for name in ("push us", "take and finish us", "bytes")
        ]
        print(
            f"| {slots} | {tenants} | {layout} | {cells[0]:.1f} | {cells[1]:.1f} | {cells[2]:.0f} |"
        )
    print(f"\nvirtual_time: {skip:.1f} us for each job of a full type, once")


if __name__ == "__main__":
    main()
