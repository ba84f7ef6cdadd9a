"""docs/reliability.md names tests that exist, one for each promise, and every lane of the
adversary.
"""

import re
from pathlib import Path

from tests.chaos.plan import LANES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_each_promise_names_a_test_that_exists() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    tests = {name for text in sources for name in re.findall(r"def (test_\w+)", text)}
    assert set(re.findall(r"`(test_\w+)`", TEXT)) - tests == set()
    promises = re.findall(r"^- \*\*.+?(?=\n- |\n\n)", TEXT, re.MULTILINE | re.DOTALL)
    assert len(promises) >= 8
    assert [promise for promise in promises if "`test_" not in promise] == []


def test_every_lane_is_described() -> None:
    rows = [row.split("|")[1] for row in TEXT.splitlines() if row.startswith("| ")]
    assert set(LANES) <= {name.strip() for row in rows for name in row.split(",")}
