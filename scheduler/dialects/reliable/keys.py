"""The names of keys: ours carry the queue as a hash tag; those of the original are for one queue,
and may be chosen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from os.path import commonprefix

from scheduler.model.labels import Priority

LEVELS = tuple(priority.name.lower() for priority in Priority)
OWN = (
    "jobs",
    "attempts",
    "between",
    "retries",
    "finished",
    "workers",
    "marker",
    "cancels",
    "notes",
    "reasons",
    "origins",
    "origins:before",
    "paused",
    "unhandled",
    "begun",
    "returned",
    "settled",
    "settled:before",
)
LISTS = {"high": "jobqueue:high_priority", "low": "jobqueue:low_priority"}


@dataclass(frozen=True, slots=True)
class Keys:
    """Where everything of one queue is. `levels` in the order of priority, `words` as entries name
    them.
    """

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
    def original(
        cls,
        lists: Mapping[str, str] = LISTS,
        *,
        processing: str = "jobqueue:worker:%s:processing",
        heartbeat: str = "jobqueue:processing:worker:%s",
        completed: str = "jobqueue:completed",
        dead: str = "jobqueue:dead_letter",
    ) -> "Keys":
        """Name the keys as the original does: one list for each of its priorities, the highest
        first.
        """
        words = _spread(tuple(lists))
        levels = tuple(lists[word] for word in words)
        prefix = commonprefix([*lists.values()]).rpartition(":")[0] or levels[0]  # noqa: RUF071 - no paths
        tags = {_tag(key) for key in (*levels, prefix, completed, dead, processing, heartbeat)}
        return cls(
            levels=levels,
            words=words,
            prefix=prefix,
            completed=completed,
            dead=dead,
            processing_pattern=processing,
            heartbeat_pattern=heartbeat,
            tagged=len(tags) == 1 and tags != {""},
        )

    def processing(self, worker: str) -> str:
        """Name the list of what a worker holds."""
        return self.processing_pattern % worker

    def heartbeat(self, worker: str) -> str:
        """Name the key that is there while a worker lives."""
        return self.heartbeat_pattern % worker

    def said(self, worker: str = "") -> str:
        """Name the key in which a worker says what it is like."""
        return f"{self.prefix}:said:{worker}"

    def retry_default(self, worker: str = "") -> str:
        """Return the string in which a worker stores its default retry policy."""
        return f"{self.prefix}:retry:{worker}"

    def outcomes(self, installation: str) -> str:
        """Name the stream of ends that one ledger settles."""
        return f"{self.prefix}:outcomes:{installation}"

    def epoch(self, installation: str) -> str:
        """Name the mark of one ledger."""
        return f"{self.prefix}:epoch:{installation}"

    def named(self, *names: str) -> list[str]:
        """Name others, those of `OWN`."""
        return [f"{self.prefix}:{name}" for name in names]


def _spread(words: tuple[str, ...]) -> tuple[str, ...]:
    """Spread fewer priorities over our levels: of two, CRITICAL and HIGH are the first."""
    last = len(words) - 1
    return tuple(
        words[min(last, (level * len(words) + 1) // len(LEVELS))] for level in range(len(LEVELS))
    )


def _tag(key: str) -> str:
    """Read the part of a key by which a cluster chooses its server, if it has one."""
    _, _, rest = key.partition("{")
    return rest.partition("}")[0] if "}" in rest else ""
