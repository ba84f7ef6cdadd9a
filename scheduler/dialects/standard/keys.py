"""The keys of a queue. All have the queue as their hash tag, so that one script can use them in a
cluster.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one queue; `prefix` begins each of them."""

    prefix: str

    @classmethod
    def from_queue(cls, queue: str) -> "Keys":
        """Return the keys of a queue."""
        return cls(f"jobqueue:{{{queue}}}")

    def named(self, *names: str) -> list[str]:
        """Return keys that a queue has once, such as `waiting` and `jobs`."""
        return [f"{self.prefix}:{name}" for name in names]

    def leased(self, worker: str) -> str:
        """Return the set of ids that a worker leases."""
        return f"{self.prefix}:worker:{worker}"

    def status(self, worker: str = "") -> str:
        """Return the string in which a worker reports its status."""
        return f"{self.prefix}:said:{worker}"

    def retry_default(self, worker: str = "") -> str:
        """Return the string in which a worker stores its default retry policy."""
        return f"{self.prefix}:retry:{worker}"

    def results(self, installation: str) -> str:
        """Return the stream of results for one ledger."""
        return f"{self.prefix}:results:{installation}"

    def epoch(self, installation: str) -> str:
        """Return the string with the epoch of one ledger."""
        return f"{self.prefix}:epoch:{installation}"

    def wake(self, type_: str | None) -> str:
        """Return the list that wakes workers for parked jobs of a type; None: of any type."""
        return f"{self.prefix}:wake:any" if type_ is None else f"{self.prefix}:wake:type:{type_}"
