"""The names of keys: ours carry the queue as a hash tag; the preset has those of the original, for one queue."""

from dataclasses import dataclass

from scheduler.model.labels import Priority

LEVELS = tuple(priority.name.lower() for priority in Priority)


@dataclass(frozen=True, slots=True)
class Keys:
    """Where everything of one queue is. `levels` in the order of priority, `words` as entries name them."""

    levels: tuple[str, ...]
    words: tuple[str, ...]
    prefix: str
    completed: str
    dead: str
    processing_pattern: str
    heartbeat_pattern: str
    tagged: bool = True

    @classmethod
    def of(cls, queue: str) -> "Keys":
        """Name the keys of a queue."""
        prefix = f"jobqueue:{{{queue}}}"
        return cls(
            levels=tuple(f"{prefix}:{level}" for level in LEVELS),
            words=LEVELS,
            prefix=prefix,
            completed=f"{prefix}:completed",
            dead=f"{prefix}:dead_letter",
            processing_pattern=f"{prefix}:worker:%s:processing",
            heartbeat_pattern=f"{prefix}:processing:worker:%s",
        )

    @classmethod
    def original(cls) -> "Keys":
        """Name the keys as the original does: two levels, no hash tag, and so not in a cluster."""
        high, low = "jobqueue:high_priority", "jobqueue:low_priority"
        return cls(
            levels=(high, high, low, low, low),
            words=("high", "high", "low", "low", "low"),
            prefix="jobqueue",
            completed="jobqueue:completed",
            dead="jobqueue:dead_letter",
            processing_pattern="jobqueue:worker:%s:processing",
            heartbeat_pattern="jobqueue:processing:worker:%s",
            tagged=False,
        )

    def processing(self, worker: str) -> str:
        """Name the list of what a worker holds."""
        return self.processing_pattern % worker

    def heartbeat(self, worker: str) -> str:
        """Name the key that is there while a worker lives."""
        return self.heartbeat_pattern % worker

    def outcomes(self, installation: str) -> str:
        """Name the stream of ends that one ledger settles."""
        return f"{self.prefix}:outcomes:{installation}"

    def epoch(self, installation: str) -> str:
        """Name the mark of one ledger."""
        return f"{self.prefix}:epoch:{installation}"

    def named(self, *names: str) -> list[str]:
        """Name others: jobs, attempts, between, retries, finished, workers, marker, cancels, notes, reasons."""
        return [f"{self.prefix}:{name}" for name in names]
