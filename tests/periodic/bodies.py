"""Functions that a process of its own can import."""

import os
import re
import sys
import time
from pathlib import Path

from scheduler import RunContext


def write_pid(context: RunContext) -> None:
    with Path(os.environ["BODIES_LOG"]).open("a", encoding="utf-8") as file:
        file.write(
            f"{os.getpid()} {context.tenant} {context.fire_at.isoformat()} {context.attempt} "
            f"{context.fence}\n"
        )
    context.logger.warning("written by %d", os.getpid())


def fails() -> None:
    raise ValueError("no paper \0")


def exits() -> None:
    sys.exit(3)


def dies() -> None:
    os.kill(os.getpid(), 9)


def holds_the_gil() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")


def ends_when_told(context: RunContext) -> None:
    end = time.monotonic() + 60
    while not context.cancelled and time.monotonic() < end:
        time.sleep(0.01)
    with Path(os.environ["BODIES_LOG"]).open("a", encoding="utf-8") as file:
        file.write(f"told {context.cancelled.reason}\n")


async def is_async() -> None:
    Holder.write("async\n")


class Holder:
    @staticmethod
    def nested() -> None:
        Holder.write("nested\n")

    @staticmethod
    def write(text: str) -> None:
        with Path(os.environ["BODIES_LOG"]).open("a", encoding="utf-8") as file:
            file.write(text)


def leaves_a_process_behind() -> None:
    os.system("sleep 120 & wait")


def logs_nonsense(context: RunContext) -> None:
    context.logger.warning("%d", "three")
    context.logger.info("fine")
