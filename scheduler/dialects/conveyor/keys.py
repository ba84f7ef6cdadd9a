"""The names of keys: as the specification has them (`seed`), or as the Go project has them
(`upstream`).
"""

from dataclasses import dataclass

from scheduler.errors import ConfigError

PRESETS = ("seed", "upstream")
NAMESPACES = {"seed": "", "upstream": "conv"}
TAKEN = ("scheduled", "failed", "events")  # names that a bare queue would share with something else
PARTS = ("jobs", "worker", "workers", "queues", "ring")  # and beginnings, before a colon


@dataclass(frozen=True, slots=True)
class Keys:
    """Where everything is; `names` is the preset. In a cluster the namespace needs a hash tag, as
    in `{conv}`.
    """

    names: str = "seed"
    namespace: str | None = None

    def __post_init__(self) -> None:
        if self.names not in PRESETS:
            raise ConfigError(f"keys: must be one of {', '.join(PRESETS)}, not {self.names!r}")

    @property
    def base(self) -> str:
        """What every name begins with."""
        namespace = NAMESPACES[self.names] if self.namespace is None else self.namespace
        return f"{namespace}:" if namespace else ""

    @property
    def tagged(self) -> bool:
        """Whether all keys are on one server of a cluster."""
        _, _, rest = self.base.partition("{")
        return "}" in rest and not rest.startswith("}")

    @property
    def scheduled(self) -> str:
        """Jobs by when they are due; scripts are given this one, the names of the others begin as
        it does.
        """
        return f"{self.base}scheduled"

    @property
    def failed(self) -> str:
        """Jobs that failed for good."""
        return f"{self.base}failed"

    @property
    def events(self) -> str:
        """The channel on which changes are said."""
        return f"{self.base}events"

    def queue(self, name: str) -> str:
        """Name the list of a queue; raises `ValueError` if something else has that name."""
        if self.names == "upstream":
            return f"{self.base}queue:{name}"
        part, colon, _ = name.partition(":")
        if name in TAKEN or (colon and part in PARTS):
            raise ValueError(
                f"queue {name!r} would be the key of something else; choose another name"
            )
        return f"{self.base}{name}"

    def job(self, uuid: str, what: str = "") -> str:
        """Name the body of a job, or what belongs to it: children, active, onComplete."""
        word = "jobs" if self.names == "seed" else "job"
        return f"{self.base}{word}:{uuid}{':' if what else ''}{what}"

    def worker(self, name: str) -> str:
        """Name the set of what a worker holds."""
        return f"{self.base}worker:active:{name}"

    def ring(self, queue: str, what: str) -> str:
        """Name what only our workers and ledgers know of a queue."""
        return f"{self.base}ring:{queue}:{what}"
