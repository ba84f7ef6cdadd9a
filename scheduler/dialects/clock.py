"""Redis's clock as we know it, to say until when a call may be carried out."""

import time

from scheduler.dialects.client import Client

HOLDS = 5.0  # seconds for which a look at it counts


class RedisClock:
    """The clock of a server that is reached through a client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ahead = 0.0  # of our monotonic clock, in ms, or a little less
        self._until = 0.0

    def ms(self, moment: float) -> int | None:
        """Say what it shows at a moment of our monotonic clock, rather too early; None: a cluster has several."""
        if self._client.clustered:
            return None
        if time.monotonic() >= self._until:
            seconds, microseconds = self._client.call("TIME")
            heard = time.monotonic()
            self._ahead = int(seconds) * 1000 + int(microseconds) / 1000 - heard * 1000
            self._until = heard + HOLDS
        return int(moment * 1000 + self._ahead)

    def forget(self) -> None:
        """Look again: it may be another's by now."""
        self._until = 0.0
