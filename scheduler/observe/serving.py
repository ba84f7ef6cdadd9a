"""The port of a process: what it serves of schedulers, workers, producers. One that is taken keeps
nobody from work.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, Self

from scheduler.errors import ConfigError
from scheduler.observe.health import NO_EXTRA, Pages, Server, reasons
from scheduler.observe.watched import Watched

if TYPE_CHECKING:
    from scheduler.observe.metrics import Metrics
    from scheduler.observe.shared import Shared

logger = logging.getLogger("scheduler")

SAMPLE = timedelta(seconds=2)
UNSERVED = "%s; this process runs without health checks and metrics"


class Working(Watched, Protocol):
    """A worker of one process, or of several."""

    on_child_start: Callable[[], object]
    idle: Callable[[float], object]

    @property
    def processes(self) -> int:
        """The number of processes."""


class Serving:
    """Serves what is watched, as a context manager."""

    def __init__(
        self, host: str, port: int, queues: Iterable[str], sample_every: timedelta
    ) -> None:
        self._host = host
        self._port = port
        self._watched: list[Watched] = []
        self._metrics = _metrics(queues, sample_every)
        self._server: Server | None = None

    def watch(self, watched: Watched) -> None:
        """Serve what one sees of a scheduler, a worker or a producer."""
        self._watched.append(watched)
        if self._metrics is not None:
            self._metrics.watch(watched)

    @property
    def address(self) -> str | None:
        """Where it is; None: nowhere."""
        return None if self._server is None else self._server.address

    def bind(self, port: int | None = None) -> None:
        """Start to serve, on `port` if it is given; raises ConfigError if it cannot be bound."""
        exposes = None
        if self._metrics is not None:
            from scheduler.observe.metrics import exposed  # noqa: PLC0415 - an extra

            exposes = exposed(self._metrics)
        pages = Pages(lambda: reasons(self._watched), exposes)
        self._server = Server(self._host, self._port if port is None else port, pages.answer)

    def __enter__(self) -> Self:
        if self._server is None:
            try:
                self.bind()
            except ConfigError as error:
                logger.warning(UNSERVED, error)
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.stop()

    @contextlib.contextmanager
    def around(self, worker: Working) -> Iterator[None]:
        """Serve a worker while it runs; if it has several processes, their parent answers for all
        of them.
        """
        if worker.processes == 1:
            self.watch(worker)
            with self:
                yield
            return
        shared = self._shared(worker)
        if shared is not None:
            worker.on_child_start, worker.idle = shared.born, shared.serve
        try:
            yield
        finally:
            if shared is not None:
                shared.close()

    def _shared(self, worker: Working) -> "Shared | None":
        if self._metrics is None:
            logger.warning("nobody can ask how these processes are: %s", NO_EXTRA)
            return None
        from scheduler.observe.shared import Shared  # noqa: PLC0415 - an extra

        try:
            return Shared(self._host, self._port, worker.processes, self._metrics, worker)
        except ConfigError as error:
            logger.warning(UNSERVED, error)
            return None


def _metrics(queues: Iterable[str], sample_every: timedelta) -> "Metrics | None":
    if find_spec("prometheus_client") is None:
        return None
    from scheduler.observe.metrics import Metrics  # noqa: PLC0415 - an extra

    return Metrics(queues, sample_every=sample_every)
