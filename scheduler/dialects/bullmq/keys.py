"""The names of keys, as BullMQ has them: `prefix:queue:what`. What the ring adds is under
`prefix:queue:ring`.
"""

import base64
from dataclasses import dataclass

from scheduler.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Keys:
    """Where everything of one queue is; in a cluster the prefix needs a hash tag, as in
    `{bull}`.
    """

    queue: str
    prefix: str = "bull"

    def __post_init__(self) -> None:
        for name, value in (("queue", self.queue), ("prefix", self.prefix)):
            if not value or (name == "queue" and ":" in value):
                raise ConfigError(
                    f"{name}: must be a text without ':', which ends a name in keys, not {value!r}"
                )

    @property
    def base(self) -> str:
        """The queue itself, as parents and dashboards name it."""
        return f"{self.prefix}:{self.queue}"

    @property
    def meta(self) -> str:
        """What scripts are given: the names of all others begin as this does."""
        return f"{self.base}:meta"

    @property
    def tagged(self) -> bool:
        """Whether all keys of all queues with this prefix are on one server of a cluster."""
        _, _, rest = self.prefix.partition("{")
        return "}" in rest and not rest.startswith("}")

    def named(self, what: str) -> str:
        """Name another: wait, active, prioritized, delayed, completed, failed, marker, events, or a
        job by its id.
        """
        return f"{self.base}:{what}"

    def ring(self, installation: str, what: str) -> str:
        """Name what one ledger has here: epoch, fed, outcomes, cursor."""
        return f"{self.base}:ring:{installation}:{what}"

    def own(self, what: str) -> str:
        """Name what our workers have here, of whatever ledger: workers, and behind `said:` what
        each says of itself.
        """
        return f"{self.base}:ring:{what}"

    def client_name(self, worker: str = "") -> str:
        """Name a connection as dashboards look for it."""
        encoded = base64.b64encode(self.queue.encode()).decode()
        return f"{self.prefix}:{encoded}:w:{worker}" if worker else f"{self.prefix}:{encoded}"
