"""What ships for Prometheus and Grafana: promtool accepts it, and it names the metrics that there
are.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.core import Metric

from scheduler import PermanentError, Scheduler, handler
from scheduler.observe.metrics import Metrics
from tests.observe.scrapes import needs_promtool, promtool
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
OPS = ROOT / "ops"
ROW = re.compile(r"^\| `(\w+)` \| (counter|gauge|histogram) \|([^|]*)\|", re.MULTILINE)
SEED = {
    "jobs_produced_total": ("counter", ["queue"]),
    "jobs_consumed_total": ("counter", ["queue"]),
    "jobs_completed_total": ("counter", ["queue"]),
    "jobs_failed_total": ("counter", ["queue", "reason"]),
    "jobs_retried_total": ("counter", ["queue"]),
    "jobs_dead_letter_total": ("counter", ["queue"]),
    "job_processing_duration_seconds": ("histogram", ["queue"]),
    "queue_length": ("gauge", ["queue"]),
    "circuit_breaker_state": ("gauge", ["queue"]),
    "reaper_jobs_moved_total": ("counter", []),
}


@pytest.fixture
def exposed(ring: Scheduler, make_worker: MakeWorker) -> dict[str, tuple[str, list[str]]]:
    """Type and labels of each metric of an instance and a worker, in which everything happened
    once.
    """

    @handler("send", queue="mail")
    def send(_: Any, __: Any) -> None:
        raise PermanentError("so")

    metrics = Metrics(["mail"]).watch(ring).watch(make_worker())
    ring.submit("acme", "send", queue="mail")

    def found() -> dict[str, Metric]:
        return {metric.name: metric for metric in metrics.collect()}

    wait_for(lambda: found()["jobs_failed"].samples, "a job that failed")
    wait_for(
        lambda: found()["scheduler_feed_lag_seconds"].samples, "the instance has met the queue"
    )
    return dict(map(_described, found().values()))


def _described(metric: Metric) -> tuple[str, tuple[str, list[str]]]:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    labels = {label for sample in metric.samples for label in sample.labels} - {"le"}
    return name, (metric.type, sorted(labels))


def test_the_metrics_of_the_seed_are_there_to_the_letter(
    exposed: dict[str, tuple[str, list[str]]],
) -> None:
    assert {name: exposed[name] for name in SEED} == SEED


def test_the_document_has_every_metric_with_its_type_and_labels(
    exposed: dict[str, tuple[str, list[str]]],
) -> None:
    document = (ROOT / "docs/metrics.md").read_text("utf-8")
    told = {
        name: (kind, re.findall(r"`(\w+)`", labels)) for name, kind, labels in ROW.findall(document)
    }
    assert told == exposed


def test_alerts_and_dashboard_name_only_metrics_that_there_are(
    exposed: dict[str, tuple[str, list[str]]],
) -> None:
    rules = yaml.safe_load((OPS / "alerts.yml").read_text())["groups"][0]["rules"]
    panels = json.loads((OPS / "grafana.json").read_text())["panels"]
    queries = [rule["expr"] for rule in rules] + [
        each["expr"] for panel in panels for each in panel["targets"]
    ]
    named = {name for query in queries for name in _named(query)}
    assert named - exposed.keys() == set()
    assert exposed.keys() - named == set(), "the dashboard shows every metric"


def _named(query: str) -> Iterator[str]:
    bare = re.sub(r"\{.*?\}", "", query)
    for name in re.findall(r"\b(?:scheduler|jobs?|queue|circuit|reaper)_\w+", bare):
        yield re.sub(r"_(bucket|sum|count)$", "", name)


def test_the_document_says_what_to_do_about_each_alert() -> None:
    rules = yaml.safe_load((OPS / "alerts.yml").read_text())["groups"][0]["rules"]
    told = re.findall(
        r"^\| `(Scheduler\w+)` \|", (ROOT / "docs/metrics.md").read_text("utf-8"), re.MULTILINE
    )
    assert told == [rule["alert"] for rule in rules]


@needs_promtool
def test_promtool_accepts_the_rules_and_their_tests() -> None:
    promtool("check", "rules", OPS / "alerts.yml")
    promtool("test", "rules", OPS / "alerts_test.yml")
