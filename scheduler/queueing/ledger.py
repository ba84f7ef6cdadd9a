"""Where submitted jobs are kept: the statements on their tables, and whose ledger it is."""

from dataclasses import dataclass
from typing import TypeVar

from scheduler.store.engine import Row
from scheduler.store.job_queue import QueueTable
from scheduler.store.ring import RingTable
from scheduler.store.steps import Databases, Statement, Steps, run

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The tables of an installation, and the connections to them."""

    databases: Databases
    jobs: QueueTable
    ring: RingTable
    installation: str

    def run(self, steps: Steps[T], *, deadline: float | None = None, keep: bool = False) -> T:
        """Run steps in a transaction, each at most `deadline` seconds, their plans kept or not."""
        return run(self.databases, steps, deadline=deadline, keep=keep)

    def rows(self, statement: Statement) -> list[Row]:
        """Run one statement."""
        return run(self.databases, alone(statement))


def alone(statement: Statement) -> Steps[list[Row]]:
    """Make steps of one statement that needs no transaction."""
    return (yield statement._replace(alone=True))
