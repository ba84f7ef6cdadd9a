"""Requests made up from the document itself: none is the server's fault, every answer is as the
document says.
"""

import itertools
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from psycopg.sql import SQL, Identifier
from schemathesis.config import SchemathesisConfig
from schemathesis.core.parameters import ParameterLocation

from scheduler import Scheduler
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.web.app import application
from scheduler.web.openapi import document
from scheduler.web.serve import Server
from scheduler.web.table import ROUTES
from tests.web.conftest import API, QUEUES, token

MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
# 422: it fits the document, and something else is wrong with it, which the message names. Never
# 400, then.
ACCEPTED = ["2xx", "401", "403", "404", "409", "422", "429"]
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module"
)  # schemathesis does
HEADERS = {"Authorization": "Bearer secret of acme"}


class Tried:
    """A server with some jobs, and its document."""

    def __init__(self, ring: Scheduler, url: str) -> None:
        config = SchemathesisConfig.from_dict(
            {"checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}}}
        )
        self.schema: Any = schemathesis.openapi.from_dict(document(ROUTES, API), config=config)
        self.url = f"{url}{API}"
        ring.register("acme", "tick", lambda: None, every="1d")
        live = [ring.submit("acme", "x", {"n": n}, delay="1h", tags={"a": "b"}) for n in range(3)]
        over = [ring.submit("acme", "x", b"x", delay="1h") for _ in range(3)]
        for each in over:
            ring.cancel_job("acme", each.id)
        ring.submit("acme", "x", queue="mail")
        self.known = {
            "id": [str(each.id) for each in (*live, *over)],
            "job_id": ["tick"],
            "name": ["mail", "default"],
        }


@pytest.fixture(scope="module")
def tried(dsn: str, redis_server: EmbeddedRedis) -> Iterator[Tried]:
    schema = f"t_{uuid4().hex[:12]}"
    with Scheduler(dsn, schema=schema, redis=redis_server.url, queues=QUEUES) as ring:
        server = Server(
            application(ring, tokens=[token("acme", tenants=None)], rate_limit=0), "127.0.0.1", 0
        )
        server.start()
        yield Tried(ring, server.url)
        server.stop()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SQL("DROP SCHEMA {} CASCADE").format(Identifier(schema)))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", [route.name for route in ROUTES if not route.streams])
def test_no_request_is_the_servers_fault_and_every_answer_is_as_described(
    tried: Tried, name: str, mode: schemathesis.GenerationMode, full: bool
) -> None:
    operation = tried.schema.find_operation_by_id(name)
    positive = mode is schemathesis.GenerationMode.POSITIVE
    asked = next(route.asked for route in ROUTES if route.name == name)
    known = {place: itertools.cycle([None, *ids]) for place, ids in tried.known.items()}

    @settings(
        max_examples=400 if full else 15,
        deadline=None,
        database=None,
        derandomize=not full,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        if positive:
            for place in case.path_parameters or {}:  # one that there is, or what was made up
                case.path_parameters[place] = next(known[place]) or case.path_parameters[place]
            fixed = {"tenant": "acme", "seconds": 0}
            case.query = {
                **(case.query or {}),
                **{name: value for name, value in fixed.items() if name in asked},
            }
        else:  # what is wrong must be in what is sent: of an empty list nothing is
            assume(all(value not in ([], {}) for value in (case.query or {}).values()))
            how = case.meta.components.get(ParameterLocation.HEADER)
            if how is not None and how.mode is mode:
                case.call_and_validate(tried.url, timeout=30)
                return
        case.call_and_validate(tried.url, headers=HEADERS, timeout=30)

    check()
