"""What really ran: one line per start and end of a body, appended by the body itself, outside our
tables.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from tests.support.lines import append, read_lines

# start, end: the body itself. accepted, lost: what the process was told of its run (FireEnded,
# LeaseLost).
Phase = Literal["start", "end", "accepted", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One line. `monotonic` is the machine's, comparable between processes; `wall` is what the
    process believes.
    """

    phase: Phase
    tenant: str
    job_id: str
    fire_at: datetime
    attempt: int
    fence: int | None
    pid: int
    monotonic: float
    wall: float


class Journal:
    """An append-only file that many processes write to, and read meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(
        self,
        phase: Phase,
        tenant: str,
        job_id: str,
        fire_at: datetime,
        attempt: int,
        fence: int | None = None,
    ) -> None:
        """Add a line."""
        record = Record(
            phase=phase,
            tenant=tenant,
            job_id=job_id,
            fire_at=fire_at,
            attempt=attempt,
            fence=fence,
            pid=os.getpid(),
            monotonic=time.monotonic(),
            wall=time.time(),
        )
        append(self.path, json.dumps({**asdict(record), "fire_at": fire_at.isoformat()}))

    def read(self) -> list[Record]:
        """Read every line."""
        lines = [json.loads(line) for line in read_lines(self.path)]
        return [
            Record(**{**line, "fire_at": datetime.fromisoformat(line["fire_at"])}) for line in lines
        ]
