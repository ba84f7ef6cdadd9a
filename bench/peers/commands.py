"""The command line of a peer. Jobs are named as PREFIX:COUNT:DUE: hourly, first due at the Unix
second DUE.

info                   print what it is
register JOBS          store them with the peer's call for many
register-singly JOBS   store them one by one
serve JOBS...          run one instance that has them, print "ready", go on until killed
"""

import json
import os
import signal
import sys
import time
from importlib.metadata import version

URL = os.environ["BENCH_URL"]
STAMPS = os.environ["BENCH_STAMPS"]
WORKERS = int(os.environ["BENCH_WORKERS"])


def main(package, commands, **info):
    """Run the command of sys.argv; `commands` has a function for each but `info`, which prints
    `info` as it is.

    One may return its answer with what is to be done when nobody needs this process any more: its
    input ends then.
    """
    name, *arguments = sys.argv[1:]
    if name == "info":
        answer = {"version": version(package), **info}
    else:
        answer = commands[name](
            *[_jobs(argument) if ":" in argument else argument for argument in arguments]
        )
    answer, close = answer if isinstance(answer, tuple) else (answer, None)
    print(json.dumps(answer), flush=True)
    if close is not None:
        sys.stdin.read()
        close()
    os._exit(0)


def timed(function):
    """Time a call in seconds."""
    start = time.perf_counter()
    function()
    return {"seconds": time.perf_counter() - start}


def ready():
    """Say so, and stay."""
    print("ready", flush=True)
    signal.pause()


def _jobs(text):
    prefix, count, due = text.split(":")
    return prefix, int(count), int(due)
