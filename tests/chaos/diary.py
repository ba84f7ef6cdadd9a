"""What members write down of what they do: a file each, appended line by line."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from scheduler import JobContext
from tests.support.lines import read_lines


class Line(NamedTuple):
    """Of a job: it starts, ends or fails here, or kills its process (`poison`); or Redis took an end
    after which it is tried again (`accepted`), or its last (`closed`). `feed` is 0 where it is
    unknown. Of a start also its attempt id, its queue, and when it was leased, in seconds of Redis's
    clock.
    """

    what: str
    job_id: str
    attempt: int
    feed: int
    at: float
    pid: int
    attempt_id: str = ""
    queue: str = ""
    leased: float = 0.0


class Order(NamedTuple):
    """A job as a submitter meant it; `fails`: how many attempts are to fail, -1: for good. poison:
    each attempt kills its process.
    """

    id: str
    fails: int
    delay: float
    after: tuple[str, ...]
    key: str | None
    cancelled: bool
    poison: bool = False


class Page(NamedTuple):
    """A transaction of a submitter, before it ended: when it began, and what it was to submit."""

    tx: str
    at: float
    orders: tuple[Order, ...]


class Diary:
    """The file of this process. Times are of the machine's monotonic clock, which nobody shifts."""

    def __init__(self, folder: Path, slot: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(folder / f"{slot}.{os.getpid()}.diary", flags, 0o600)

    def job(self, what: str, job_id: str, attempt: int, feed: int = 0) -> None:
        """Write that something happens to a job."""
        self._write(f"{what} {job_id} {attempt} {feed} {time.monotonic():.4f}")

    def start(self, ctx: JobContext, leased: float) -> None:
        """Write that a job starts."""
        lease = f"{ctx.attempt_id} {ctx.queue} {leased:.3f}"
        self._write(f"start {ctx.id} {ctx.attempt} 0 {time.monotonic():.4f} {lease}")

    def page(self, page: Page) -> None:
        """Write what a transaction is about to submit."""
        self._write(f"try {json.dumps(page)}")

    def ended(self, tx: str, how: str, jobs: int) -> None:
        """Write how a transaction of so many jobs ended, if one knows."""
        self._write(f"{how} {tx} {jobs}")

    def _write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())


def read_jobs(folder: Path) -> Iterator[Line]:
    """Read what workers wrote, in the order of each."""
    for path in sorted(folder.glob("worker-*.diary")):
        pid = int(path.name.split(".")[1])
        for line in read_lines(path):
            what, job_id, attempt, feed, at, *lease = line.split()
            read = Line(sys.intern(what), job_id, int(attempt), int(feed), float(at), pid)
            if lease:
                read = read._replace(
                    attempt_id=lease[0], queue=sys.intern(lease[1]), leased=float(lease[2])
                )
            yield read


def read_orders(folder: Path) -> tuple[list[Page], dict[str, str]]:
    """Read what submitters wrote: their transactions, and how those ended that they know of."""
    pages, ends = [], {}
    for path in sorted(folder.glob("submitter-*.diary")):
        for line in read_lines(path):
            what, _, rest = line.partition(" ")
            if what == "try":
                pages.append(_page(json.loads(rest)))
            else:
                ends[rest.split()[0]] = what
    return pages, ends


def _page(data: list[Any]) -> Page:
    tx, at, orders = data
    made = (Order._make(order) for order in orders)
    return Page(tx, at, tuple(order._replace(after=tuple(order.after)) for order in made))
