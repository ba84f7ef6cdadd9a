"""The doctor: what a person would look at when something is wrong, each with what it means and the
cure.
"""

from collections.abc import Iterator
from datetime import timedelta

from scheduler.config import Settings
from scheduler.doctor import postgres, queues, redis, work
from scheduler.doctor.findings import CHECKS, Finding, Severity, findings
from scheduler.doctor.patient import LATE, Patient

__all__ = ["CHECKS", "Finding", "Severity", "examine", "postgres", "queues", "redis", "work"]


def examine(database: str, settings: Settings, *, late: timedelta = LATE) -> Iterator[Finding]:
    """Look at everything once. `late`: for how long something may wait before it is worth a
    word.
    """
    patient = Patient(database, settings, late=late)
    try:
        yield from findings(patient)
    finally:
        patient.close()
