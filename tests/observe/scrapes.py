"""What Prometheus would see: scrapes, and promtool's word on them."""

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)"
)


def get(address: str, path: str) -> tuple[int, str]:
    """GET a page."""
    try:
        with urllib.request.urlopen(address + path, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def ready(address: str) -> tuple[int, list[str]]:
    """Ask whether a process is ready; return the status, and why it is not."""
    status, body = get(address, "/readyz")
    told: dict[str, Any] = json.loads(body)
    assert told["ready"] is (status == 200)
    return status, told["reasons"]


class Scrape:
    """The samples of /metrics."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        self.names = {family.name for family in text_string_to_metric_families(text)}

    @classmethod
    def of(cls, address: str) -> "Scrape":
        """Scrape a process."""
        status, text = get(address, "/metrics")
        assert status == 200, text
        return cls(text)

    def value(self, name: str, **labels: str) -> float | None:
        """Read a sample; None: there is none."""
        return self.samples.get((name, *sorted(labels.items())))

    def labels(self, label: str) -> set[str]:
        """List the values of a label."""
        return set(self._values(label))

    def _values(self, label: str) -> Iterator[str]:
        for _, *labels in self.samples:
            yield from (value for key, value in labels if key == label)


def promtool(*arguments: str | Path, given: str = "") -> None:
    """Let promtool check something; it must have nothing to say against it."""
    assert PROMTOOL is not None
    ran = subprocess.run(
        [PROMTOOL, *map(str, arguments)], input=given, capture_output=True, text=True, timeout=30
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
