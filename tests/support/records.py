"""What really ran: one line per start and end of a body, appended by the body itself, outside our tables."""

import json
import os
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

# start, end: the body itself. accepted, lost: what the process was told of its run (FireEnded, LeaseLost).
Phase = Literal["start", "end", "accepted", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One line. `monotonic` is the machine's, comparable between processes; `wall` is what the process believes."""

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
    """An append-only file that many processes write to: a line is one write, and whole or absent."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(
        self, phase: Phase, tenant: str, job_id: str, fire_at: datetime, attempt: int, fence: int | None = None
    ) -> None:
        """Add a line; opened anew each time, so that forked processes share no descriptor."""
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
        line = json.dumps({**asdict(record), "fire_at": fire_at.isoformat()}) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def read(self) -> list[Record]:
        """Read every line."""
        if not self.path.exists():
            return []
        lines = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
        return [Record(**{**line, "fire_at": datetime.fromisoformat(line["fire_at"])}) for line in lines]
