"""What the benches make of stored figures: verdicts, ratios, marks, charts that are XML, a page."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

BENCH = Path(__file__).parents[2] / "bench"
MACHINE = {"when": "2026-01-01T00:00:00", "revision": "r", "cpu": "2 x", "python": "3.11", "postgres": "16",
           "fsync": "on", "redis": "7", "speed": 1.0, "speed_after": 1.0, "load": 0.1, "load_after": 0.1}  # fmt: skip
COMPARED = {
    "machine": MACHINE,
    "options": {"quick": False, "pin": "split"},
    "repetitions": 3,
    "peers": {"redis": {"ours": {"version": "1", "setting": "sync"}}},
    "left_out": ["celery"],
    "limits": {"redis values": [600, 600, 600]},
    "errors": [],
    "figures": {
        "redis": {
            "many": {"ours": [290, 300, 310], "saq": [90, 100, 110], "node-bullmq": [390, 400, 410]},
            "done1": {"ours": [10, 20, 30], "ours async": [], "saq": [25, 26, 27]},
            "pickup50": {"ours": [2, 2, 2], "huey": [1, 1, 1], "saq": [3, 4, 5]},
        }
    },
}
GROWN = {
    "machine": MACHINE,
    "options": {"reps": 1},
    "errors": [],
    "curves": {
        "recurring": {"rate": {"1000": [5000], "10000": [4900]}, "cpu": {"1000": [10], "10000": [100]}},
        "payload": {"cpu": {"100": [10], "1000": [100]}, "memory": {"100": [1], "1000": [100]}},
    },
}


def shown(bench: str, result: dict[str, Any], folder: Path) -> list[list[str]]:
    """Let a bench show a result, on a page too; the cells of its tables."""
    stored = folder / "result.json"
    stored.write_text(json.dumps(result))
    command = [sys.executable, str(BENCH / f"{bench}.py"), "--again", str(stored), "--docs", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    lines = [line for line in run.stdout.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    found = tmp_path / "benchmarks.md"
    sections = "".join(f"<!-- {name} -->\nold\n<!-- end of {name} -->\n" for name in ("compare", "growth"))
    found.write_text(f"before\n{sections}after\n")
    return found


def row(cells: list[list[str]], name: str) -> list[str]:
    return next(line for line in cells if line[0] == name)


def test_a_row_is_first_behind_or_a_tie_by_its_spread(page: Path) -> None:
    cells = shown("compare", COMPARED, page.parent)
    many = row(cells, "enqueue 1,000 in a call, jobs/s")
    assert many[2:] == [
        "saq 100 (90.0..110)", "3.00", "first", "node-bullmq 400 (390..410)", "0.75", "behind",
        "0.50 of LPUSH of 1,000 values",
    ]  # fmt: skip
    assert row(cells, "drain, 1 process, jobs/s")[4] == "tie"


def test_nobody_is_measured_against_a_peer_that_promises_less(page: Path) -> None:
    pickup = row(shown("compare", COMPARED, page.parent), "pick-up p50, ms")
    assert pickup[2:5] == ["saq 4.00 (3.00..5.00)", "2.00", "first"]


def test_one_repetition_is_no_verdict(page: Path) -> None:
    figures = {"redis": {"many": {"ours": [300], "saq": [100]}}}
    assert (
        row(shown("compare", COMPARED | {"figures": figures}, page.parent), "enqueue 1,000 in a call, jobs/s")[4]
        == "first?"
    )


def test_the_page_keeps_what_is_not_measured_and_its_charts_are_xml(page: Path) -> None:
    shown("compare", COMPARED, page.parent)
    text = page.read_text()
    assert text.startswith("before\n<!-- compare -->\n2026-01-01 00:00")
    assert text.endswith("<!-- growth -->\nold\n<!-- end of growth -->\nafter\n")
    assert "could not be installed: celery" in text
    charts = {path.stem: ET.parse(path) for path in (page.parent / "charts").glob("*.svg")}
    assert set(charts) == {"redis-many", "redis-done1", "redis-pickup50", "overview"}
    assert all(f"charts/{name}.svg" in text for name in set(charts) - {"overview"})
    texts = [each.text for each in charts["redis-many"].iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in {"ours", "saq", "node-bullmq"}] == ["node-bullmq", "ours", "saq"]


def test_what_grows_worse_than_linearly_is_marked(page: Path) -> None:
    cells = shown("growth", GROWN, page.parent)
    assert row(cells, "jobs/s")[-2:] == ["+0.01", "flat"]
    recurring, payload = (line for line in cells if line[0] == "CPU us/job")
    assert recurring[-1] == "WORSE THAN LINEAR"  # ten times the jobs cost a hundred times
    assert payload[-1] == "grows"  # ten times the bytes cost ten times
    assert row(cells, "MB of instance and worker")[-2:] == ["+2.00", "WORSE THAN LINEAR"]
    assert {path.stem for path in (page.parent / "charts").glob("*.svg")} == {"growth-recurring", "growth-payload"}
