"""One port for several worker processes: each writes down what it counts, and their parent answers
for all of them.

The parent has no threads, for it forks: it answers between two looks at its children.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from http.server import HTTPServer
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from scheduler.observe.health import Pages, listen, reasons
from scheduler.observe.metrics import Metrics, exposed
from scheduler.observe.watched import Watched
from scheduler.service import Service

TELL_EVERY = 1.0
SILENT = 10.0

Families = list[list[Any]]  # name, text, type, samples: name, labels, value


class Shared(Collector):
    """What the processes of a worker tell. `born` is called in each of them, everything else in
    their parent.
    """

    def __init__(
        self, host: str, port: int, processes: int, metrics: Metrics, worker: Watched
    ) -> None:
        self._processes = processes
        self._metrics = metrics
        self._worker = worker
        self._gone: Families = []  # what those counted that are gone
        self._http = listen(HTTPServer, host, port, Pages(self._reasons, exposed(self)).answer)
        self._folder = Path(tempfile.mkdtemp(prefix="scheduler-"))

    def born(self) -> None:
        """Tell the parent what there is, from now on."""
        self._http.server_close()
        self._metrics.watch(self._worker)
        Service("tell", self._tell).start()

    def serve(self, seconds: float) -> None:
        """Wait for so long, and answer whoever asks."""
        self._http.timeout = seconds
        self._http.handle_request()

    def close(self) -> None:
        """Answer nobody any more."""
        self._http.server_close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def describe(self) -> Iterable[Metric]:
        """Say nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Write down what all of them count, and what those see that are there."""
        told = [(each["families"], heard) for each, heard in self._heard()]
        yield from together([(self._gone, False), *told])

    def _reasons(self) -> list[str]:
        told = [each["reasons"] for each, heard in self._heard() if heard]
        found = [reason for each in told for reason in each]
        if len(told) < self._processes:
            found.append(f"{len(told)} of {self._processes} worker processes are heard of")
        return found

    def _tell(self) -> float:
        place = self._folder / f"{os.getpid()}.json"
        told = {"families": written(self._metrics.collect()), "reasons": reasons([self._worker])}
        unfinished = place.with_suffix(".new")
        unfinished.write_text(json.dumps(told))
        unfinished.replace(place)
        return TELL_EVERY

    def _heard(self) -> list[tuple[dict[str, Any], bool]]:
        """Read what was told, and whether that was just now; keep what those counted that are
        gone.
        """
        found = []
        for place in sorted(self._folder.glob("*.json")):
            told = json.loads(place.read_text())
            heard = time.time() - place.stat().st_mtime < SILENT
            if heard or _lives(int(place.stem)):
                found.append((told, heard))
            else:
                self._gone = written(together([(self._gone, False), (told["families"], False)]))
                place.unlink()
        return found


def written(metrics: Iterable[Metric]) -> Families:
    """Write metrics as JSON can have them."""
    return [
        [
            metric.name,
            metric.documentation,
            metric.type,
            [[each.name, each.labels, each.value] for each in metric.samples],
        ]
        for metric in metrics
    ]


def together(told: Iterable[tuple[Families, bool]]) -> Iterator[Metric]:
    """Put together what several processes told: counts are added, and the largest gauge of those
    that are here wins.
    """
    found: dict[str, tuple[Metric, dict[tuple[str, tuple[tuple[str, str], ...]], float]]] = {}
    for families, here in told:
        for name, text, kind, samples in families:
            _, values = found.setdefault(name, (Metric(name, text, kind), {}))
            for sample, labels, value in samples if here or kind != "gauge" else ():
                key = sample, tuple(labels.items())
                before = values.get(key, value if kind == "gauge" else 0)
                values[key] = max(before, value) if kind == "gauge" else before + value
    for metric, values in found.values():
        for (sample, labels), value in values.items():
            metric.add_sample(sample, dict(labels), value)
        yield metric


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
