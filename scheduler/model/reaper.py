"""How the jobs of dead workers are found: an option of workers and of instances."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaperRule:
    """How often the jobs of dead workers are reclaimed, give or take a quarter (`interval`).

    A worker also scans for workers of the original: `base_delay` is the pause between two pages of
    the scan, `scan_count` the size of a page.
    """

    interval: timedelta = timedelta(seconds=5)
    base_delay: timedelta = timedelta(milliseconds=10)
    scan_count: int = 100
