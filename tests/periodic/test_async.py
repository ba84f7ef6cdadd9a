"""Async apps: the a-variants, and `async def` jobs on the app's own loop."""

import asyncio
import threading
from typing import Any

import pytest

import scheduler
from scheduler import LifecycleError, Outcome, Scheduler
from scheduler.events import FireEnded
from tests.periodic.conftest import Road
from tests.support.recorder import Recorder


def test_every_blocking_call_has_an_a_variant(road: Road, schema: str) -> None:
    async def app() -> None:
        made = await scheduler.ainitialise(road.dsn, schema=schema, prepare=road.prepare)
        try:
            await scheduler.aregister("acme", "x", lambda: None, every="1h")
            await scheduler.aregister_many([{"tenant": "acme", "job_id": "y", "fn": lambda: None}])
            assert {job.job_id for job in scheduler.jobs()} == {"x", "y"}
            await scheduler.apause("acme", "x")
            assert await scheduler.aresume("acme", "x") is not None
            assert await scheduler.atrigger("acme", "x") is not None
            assert (await scheduler.aexplain("acme", "x")).job_id == "x"
            assert await scheduler.ahistory("acme", "x")
            await scheduler.aunregister("acme", "x")
            with pytest.raises(scheduler.UnknownJob):
                await scheduler.aexplain("acme", "x")
        finally:
            await scheduler.acancel()
        assert not made.is_running()

    asyncio.run(app())


def test_async_jobs_run_on_the_loop_that_was_given(road: Road, schema: str) -> None:
    seen: list[Any] = []

    async def app() -> None:
        done = asyncio.Event()  # of this loop: only a body on it may set it

        async def body() -> None:
            seen.append((asyncio.get_running_loop(), threading.current_thread()))
            await asyncio.sleep(0)
            done.set()

        loop = asyncio.get_running_loop()
        async with asyncio.timeout(20):
            instance = await Scheduler(
                road.dsn, schema=schema, prepare=road.prepare, loop=loop
            ).astart()
            await instance.aregister("acme", "x", body)
            await done.wait()
            with pytest.raises(LifecycleError, match="await acancel"):
                instance.cancel()
            await instance.acancel()
        assert seen == [(loop, threading.current_thread())]

    asyncio.run(app())


def test_a_job_whose_loop_has_ended_fails_and_says_so(
    road: Road, schema: str, recorder: Recorder
) -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    async def body() -> None: ...

    with Scheduler(road.dsn, schema=schema, prepare=road.prepare, loop=loop) as instance:
        recorder.listen(instance).register("acme", "x", body)
        (ended,) = recorder.wait(lambda: recorder.of(FireEnded))
    assert ended.outcome is Outcome.FAILED
    assert "loop is closed" in (ended.error or "")


def test_a_loop_that_is_none_is_refused() -> None:
    with pytest.raises(scheduler.ConfigError, match=r"loop: must be an asyncio loop"):
        Scheduler("postgresql://nowhere", loop="mine")  # type: ignore[arg-type]


def test_an_async_body_on_the_apps_loop_is_cancelled_at_its_timeout(
    road: Road, schema: str, recorder: Recorder
) -> None:
    cancelled = []

    async def app() -> None:
        async def body() -> None:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        loop = asyncio.get_running_loop()
        instance = await Scheduler(
            road.dsn, schema=schema, prepare=road.prepare, loop=loop
        ).astart()
        recorder.listen(instance)
        await instance.aregister("acme", "x", body, timeout="300ms")
        (ended,) = await asyncio.to_thread(recorder.wait, lambda: recorder.of(FireEnded))
        assert ended.outcome is Outcome.TIMEOUT
        await instance.acancel()

    asyncio.run(app())
    assert cancelled == [True]


def test_a_loop_that_stops_does_not_keep_its_job_for_ever(
    road: Road, schema: str, recorder: Recorder
) -> None:
    loop = asyncio.new_event_loop()
    began = threading.Event()

    async def body() -> None:
        began.set()
        await asyncio.sleep(60)

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    with Scheduler(road.dsn, schema=schema, prepare=road.prepare, loop=loop) as instance:
        recorder.listen(instance).register("acme", "x", body, timeout="1s")
        assert began.wait(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        (ended,) = recorder.wait(lambda: recorder.of(FireEnded))
        assert ended.outcome is Outcome.TIMEOUT
        assert "the app's loop has stopped" in (ended.error or "")
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_a_cancel_that_is_refused_can_be_made_as_it_says(road: Road, schema: str) -> None:
    async def app() -> None:
        loop = asyncio.get_running_loop()
        await scheduler.ainitialise(road.dsn, schema=schema, prepare=road.prepare, loop=loop)
        with pytest.raises(LifecycleError, match="await acancel"):
            scheduler.cancel()
        with pytest.raises(scheduler.InvalidOption):
            await scheduler.acancel(timeout=-1)
        await scheduler.acancel()

    asyncio.run(app())
