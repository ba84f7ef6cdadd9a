"""Pause, resume and delete tenants: their submitted jobs."""

import threading
import time
from typing import Any

import psycopg
import pytest

import scheduler
from scheduler import Scheduler, State, TenantNotPaused, handler
from scheduler.dialects.client import Client
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import wait_until


def test_paused_tenants_jobs_stay_in_redis(ring: Scheduler, make_worker: MakeWorker) -> None:
    ran: list[str] = []

    @handler("mail", queue="mail")
    def mail(ctx: scheduler.JobContext, payload: object) -> None:
        ran.append(f"{ctx.tenant}:{payload}")

    first = ring.submit("other", "mail", 0, queue="mail").id
    make_worker()
    ring.wait("other", first, timeout=60)
    ring.pause_tenant("acme")
    jobs = [ring.submit("acme", "mail", n, queue="mail").id for n in range(3)]
    ring.wait("other", ring.submit("other", "mail", 1, queue="mail").id, timeout=60)
    assert ran == ["other:0", "other:1"]
    assert ring.get("acme", jobs[0]).reason is not None
    assert ring.resume_tenant("acme")
    for each in jobs:
        assert ring.wait("acme", each, timeout=60).state is State.COMPLETED
    assert ran[2:] == ["acme:0", "acme:1", "acme:2"]
    assert ring.get("acme", jobs[0]).reason is None
