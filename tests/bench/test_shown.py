"""What the benches make of stored figures: verdicts, ratios, marks, charts that are XML, a page."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

BENCH = Path(__file__).parents[2] / "bench"
MACHINE = {
    "when": "2026-01-01T00:00:00",
    "revision": "r",
    "cpu": "2 x",
    "python": "3.11",
    "postgres": "16",
    "fsync": "on",
    "redis": "7",
    "speed": 1.0,
    "speed_after": 1.0,
    "load": 0.1,
    "load_after": 0.1,
}
COMPARED = {
    "machine": MACHINE,
    "options": {"quick": False, "pin": "split"},
    "repetitions": 3,
    "peers": {
        "redis": {
            "ours": {"version": "1", "setting": "sync", "prefetch": "0"},
            "saq": {"version": "2", "setting": "plain", "prefetch": "100"},
        }
    },
    "left_out": ["celery"],
    "limits": {"redis values": [600, 600, 600]},
    "errors": [],
    "figures": {
        "redis": {
            "many": {
                "ours": [290, 300, 310],
                "saq": [90, 100, 110],
                "node-bullmq": [390, 400, 410],
            },
            "done1": {"ours": [10, 20, 30], "ours async": [], "saq": [25, 26, 27]},
            "done2": {"ours": [30], "saq": [10]},
            "pickup50": {"ours": [2, 2, 2], "huey": [1, 1, 1], "saq": [3, 4, 5]},
        }
    },
}
GROWN = {
    "machine": MACHINE,
    "options": {"reps": 1},
    "errors": [],
    "curves": {
        "recurring": {
            "rate": {"1000": [5000], "10000": [4900]},
            "cpu": {"1000": [10], "10000": [100]},
        },
        "tenants": {"cpu": {"1": [10], "100": [9000]}, "elsewhere": {"1": [0.1], "100": [1.5]}},
        "payload": {"cpu": {"100": [10], "1000": [100]}, "memory": {"100": [1], "1000": [100]}},
    },
}


def shown(bench: str, result: dict[str, Any], folder: Path) -> list[list[str]]:
    """Let a bench show a result, on a page in a folder too; the cells of its tables."""
    sections = "".join(
        f"<!-- {name} -->\nold\n<!-- end of {name} -->\n" for name in ("compare", "growth")
    )
    (folder / "benchmarks.md").write_text(f"before\n{sections}after\n")
    (folder / "result.json").write_text(json.dumps(result))
    stored, script = folder / "result.json", BENCH / f"{bench}.py"
    command = [sys.executable, str(script), "--again", str(stored), "--docs", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    lines = [line for line in run.stdout.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def row(cells: list[list[str]], name: str) -> list[str]:
    return next(line for line in cells if line[0] == name)


def test_a_row_is_first_behind_or_a_tie_by_its_spread(tmp_path: Path) -> None:
    cells = shown("compare", COMPARED, tmp_path)
    many = row(cells, "enqueue 1,000 in a call, jobs/s")
    assert many[2:] == [
        "saq 100 (90.0..110)",
        "3.00",
        "first",
        "node-bullmq 400 (390..410)",
        "0.75",
        "behind",
        "0.50 of LPUSH of 1,000 values",
    ]
    assert row(cells, "drain, 1 process, jobs/s")[4] == "tie"
    assert row(cells, "drain, 2 processes, jobs/s")[4] == "first?"  # one repetition
    pickup = row(cells, "pick-up p50, ms")  # nobody is measured against huey, which promises less
    assert pickup[2:5] == ["saq 4.00 (3.00..5.00)", "2.00", "first"]
    _the_page_keeps_what_is_not_measured(tmp_path)


def test_contestants_are_shown_with_the_jobs_they_prefetch(tmp_path: Path) -> None:
    cells = shown("compare", COMPARED, tmp_path)
    assert row(cells, "contestant")[1] == "jobs prefetched, at most"
    found = {name: row(cells, name)[1] for name in ("ours 1", "saq 2", "node-bullmq")}
    assert found == {"ours 1": "0", "saq 2": "100", "node-bullmq": "?"}


def _the_page_keeps_what_is_not_measured(folder: Path) -> None:
    text = (folder / "benchmarks.md").read_text()
    assert text.startswith("before\n<!-- compare -->\n2026-01-01 00:00")
    assert text.endswith("<!-- growth -->\nold\n<!-- end of growth -->\nafter\n")
    assert "could not be installed: celery" in text
    charts = {path.stem: ET.parse(path) for path in (folder / "charts").glob("*.svg")}
    assert set(charts) == {"redis-many", "redis-done1", "redis-done2", "redis-pickup50", "overview"}
    assert all(f"charts/{name}.svg" in text for name in set(charts) - {"overview"})
    texts = [each.text for each in charts["redis-many"].iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in {"ours", "saq", "node-bullmq"}] == [
        "node-bullmq",
        "ours",
        "saq",
    ]


def test_a_busy_machine_gives_no_verdict(tmp_path: Path) -> None:
    busy: dict[str, Any] = {
        "many": {"ours": [290, 300, 310], "saq": [90, 100, 110]},
        "elsewhere": {"ours": [1.5]},
    }
    cells = shown("compare", COMPARED | {"figures": {"redis": busy}}, tmp_path)
    assert row(cells, "enqueue 1,000 in a call, jobs/s")[4] == "first?"
    assert "not to be quoted" in (tmp_path / "benchmarks.md").read_text()


def test_what_grows_worse_than_linearly_is_marked(tmp_path: Path) -> None:
    cells = shown("growth", GROWN, tmp_path)
    assert row(cells, "jobs/s")[-2:] == ["+0.01", "flat"]
    recurring, tenants, payload = (line for line in cells if line[0] == "CPU us/job")
    assert recurring[-1] == "WORSE THAN LINEAR"  # ten times the jobs cost a hundred times
    assert tenants[-1] == "WORSE THAN LINEAR?"  # but other work had the machine
    assert payload[-1] == "grows"  # ten times the bytes cost ten times
    assert cells[-1][0] == "MB of instance and worker"
    assert cells[-1][-2:] == ["+2.00", "WORSE THAN LINEAR"]
    assert {path.stem for path in (tmp_path / "charts").glob("*.svg")} == {
        "growth-recurring",
        "growth-tenants",
        "growth-payload",
    }
