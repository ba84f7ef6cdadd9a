"""Real servers for every test: an embedded Postgres (or the one named by --postgresql-host), a
schema per test.
"""

import signal
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier
from pytest_postgresql.janitor import DatabaseJanitor
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from scheduler import Scheduler
from scheduler.dialects.client import Client
from scheduler.embedded.postgres import EmbeddedPostgres
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.worker.handlers import handlers
from tests.support.recorder import Recorder

embedded = pytest.StashKey[EmbeddedPostgres]()
# The files with the longest tests, in the order of their durations.
LONGEST = (
    "tests/chaos/test_chaos",
    "tests/worker/test_killed",
    "tests/simulation",
    "tests/queueing/test_stateful",
    "tests/flows",
    "tests/interop",
    "tests/dialects/test_contract",
    "tests/browser",
    "tests/cli/test_up",
    "tests/cli/test_run",
    "tests/cli/test_inspect",
    "tests/web/test_schemathesis",
    "tests/queueing/test_ring",
    "tests/worker/test_forced_ends",
    "tests/queueing/test_recovery",
    "tests/conveyor/test_outages",
    "tests/worker/test_unhandled",
    "tests/periodic/test_run",
    "tests/cli",
    "tests/examples",
    "tests/queueing",
    "tests/embedded",
    "tests/observe",
    "tests/web",
    "tests/dialects",
    "tests/worker",
    "tests/conveyor",
    "tests/periodic",
)
# Files whose tests take seconds each and share only session fixtures. With several workers each of
# these tests is scheduled by itself.
APART = (
    "tests/flows/",
    "tests/worker/test_killed",
    "tests/worker/test_forced_ends",
    "tests/worker/test_unhandled",
    "tests/worker/test_worker",
    "tests/queueing/test_recovery",
    "tests/queueing/test_ring",
    "tests/queueing/test_troubles",
    "tests/cli/test_up",
    "tests/cli/test_run",
    "tests/cli/test_kubernetes",
    "tests/conveyor/test_outages",
    "tests/embedded/test_postgres",
    "tests/examples/",
    "tests/periodic/test_run",
)
CONTRACT = "tests/dialects/test_contract"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full",
        action="store_true",
        help="run the proofs at the size of the issue, not of make check",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Behind nohup, or in the background of a script, signals are ignored, and the processes of our
    # tests inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    distributes = getattr(config.option, "dist", "no") != "no" and not hasattr(
        config, "workerinput"
    )
    if config.option.postgresql_host is None and not config.option.collectonly and not distributes:
        server = config.stash[embedded] = EmbeddedPostgres(durable=False)
        server.start()
        config.option.postgresql_host = server.socket_folder
        config.option.postgresql_port = "5432"


def pytest_unconfigure(config: pytest.Config) -> None:
    server = config.stash.get(embedded, None)
    if server is not None:
        server.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files last, to see soon what breaks often; side by side first, so that none is
    waited for.
    """

    def place(item: pytest.Item) -> int:
        file = item.nodeid.partition("::")[0]
        return next((place for place, part in enumerate(LONGEST) if part in file), len(LONGEST))

    items.sort(key=place, reverse=not hasattr(config, "workerinput"))


class Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """Files are units of work. The contract suite is one for each server and dialect."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(APART):
            return nodeid
        file, _, test = nodeid.partition("::")
        if file.startswith(CONTRACT):
            return f"{file}[{'-'.join(test.partition('[')[2].rstrip(']').split('-')[:2])}]"
        return file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    """A test knows no handler of another's, whichever ran before it in this process."""
    before = dict(handlers)
    handlers.clear()
    yield
    handlers.clear()
    handlers.update(before)


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.option.full)


@pytest.fixture(scope="session")
def dsn(postgresql_noproc: Any) -> Iterator[str]:
    """A database of this test run, on whatever server it uses."""
    server = postgresql_noproc
    database = f"scheduler_{uuid4().hex[:12]}"
    janitor = DatabaseJanitor(
        user=server.user,
        host=server.host,
        port=server.port,
        dbname=database,
        password=server.password,
    )
    with janitor:
        yield make_conninfo(
            "",
            host=server.host,
            port=server.port,
            user=server.user,
            password=server.password,
            dbname=database,
        )


@pytest.fixture
def schema(dsn: str) -> Iterator[str]:
    """A Postgres schema of this test."""
    name = f"t_{uuid4().hex[:12]}"
    yield name
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(name)))


@pytest.fixture
def connection(dsn: str, schema: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection that looks into the test's schema."""
    with psycopg.connect(dsn, autocommit=True) as plain:
        plain.execute(SQL("SET search_path = {}").format(Identifier(schema)))
        plain.execute("SET TimeZone = 'UTC'")
        yield plain


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    """A Redis of this test run."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def redis(redis_server: EmbeddedRedis) -> Iterator[Client]:
    """An empty Redis; its URL is `redis_server.url`."""
    client = Client(redis_server.url)
    client.call("FLUSHALL")
    yield client
    client.close()


MakeScheduler = Callable[..., Scheduler]


@pytest.fixture
def make_scheduler(dsn: str, schema: str) -> Iterator[MakeScheduler]:
    """Start schedulers on the test's schema; they are cancelled at its end."""
    made: list[Scheduler] = []

    def make(**options: Any) -> Scheduler:
        scheduler = Scheduler(
            options.pop("database", dsn), schema=schema, **{"lease": "10s", **options}
        )
        made.append(scheduler)
        return scheduler.start()

    yield make
    for scheduler in made:
        if scheduler._instance is not None:
            scheduler.cancel(timeout=5)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()
