"""A scheduler on real servers, its application with tokens, and clients that have one."""

import contextlib
import re
from collections.abc import Callable, Iterator

import httpx
import pytest

from scheduler import BreakerRule, Scheduler, Worker, handler
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.web.access import SCOPES, Token, hashed
from scheduler.web.app import application
from scheduler.web.serve import Server
from scheduler.worker.handlers import handlers

API = "/api/v1"
QUEUES = {name: {"dialect": "standard"} for name in ("default", "mail")}


def token(name: str, *scopes: str, tenants: tuple[str, ...] | None = ("acme",)) -> Token:
    """A token whose secret is its name."""
    return Token(
        name=name,
        sha256=hashed(f"secret of {name}"),
        scopes=frozenset(scopes or SCOPES),
        tenants=None if tenants is None else frozenset(tenants),
    )


TOKENS = (
    token("acme"),
    token("rival", tenants=("rival",)),
    token("both", tenants=("acme", "rival")),
    token("operator", tenants=None),
    token("reader", "read"),
    token("writer", "write"),
)


@pytest.fixture
def ring(dsn: str, schema: str, redis: Client, redis_server: EmbeddedRedis) -> Iterator[Scheduler]:
    with Scheduler(dsn, schema=schema, redis=redis_server.url, queues=QUEUES) as made:
        yield made


MakeClient = Callable[..., httpx.Client]
Serve = Callable[..., str]
Visitor = Callable[..., httpx.Client]


@pytest.fixture
def serve(ring: Scheduler) -> Iterator[Callable[..., str]]:
    """Serve the application; returns where."""
    servers: list[Server] = []

    def serve(*tokens: Token, rate_limit: int = 0) -> str:
        server = Server(application(ring, tokens=tokens, rate_limit=rate_limit), "127.0.0.1", 0)
        servers.append(server)
        server.start()
        return server.url

    yield serve
    for server in servers:
        server.stop()


@pytest.fixture
def client(serve: Callable[..., str]) -> Iterator[MakeClient]:
    """Clients that have the token of that name, or none."""
    url = serve(*TOKENS)
    with contextlib.ExitStack() as stack:
        yield lambda who="acme", **headers: stack.enter_context(client_of(url, who, **headers))


def client_of(url: str, who: str | None, **headers: str) -> httpx.Client:
    if who is not None:
        headers["authorization"] = f"Bearer secret of {who}"
    plain = httpx.HTTPTransport(
        verify=False
    )  # reading all certificates takes longer than most tests
    return httpx.Client(base_url=url + API, headers=headers, timeout=20, transport=plain)


@contextlib.contextmanager
def working(
    server: EmbeddedRedis,
    type_: str,
    function: Callable[..., object],
    breaker: BreakerRule | None = None,
) -> Iterator[None]:
    """A worker that runs jobs of that type in queue mail."""
    before = dict(handlers)
    handlers.clear()
    handler(type_, queue="mail")(function)
    worker = Worker(server.url, concurrency=4, lease="5s", breaker=breaker)
    worker.start()
    try:
        yield
    finally:
        worker.stop(grace=2.0)
        handlers.clear()
        handlers.update(before)


@pytest.fixture
def visitor(serve: Serve) -> Iterator[Visitor]:
    """Browsers of people who logged in with the token of that name; None: who did not."""
    url = serve(*TOKENS)
    with contextlib.ExitStack() as stack:

        def visitor(who: str | None = "acme") -> httpx.Client:
            made = stack.enter_context(browser(url))
            if who is not None:
                form = {"csrf": csrf(made.get("/login")), "token": f"secret of {who}"}
                assert made.post("/login", data=form).headers["location"] == "/"
            return made

        yield visitor


def browser(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=20, transport=httpx.HTTPTransport(verify=False))


def csrf(page: httpx.Response) -> str:
    found = re.search(r'name="csrf" value="(\w+)"', page.text)
    assert found is not None
    return found[1]
