"""executor="process": bodies in real child processes, which may do whatever they like to
themselves.
"""

import functools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from scheduler import InvalidOption, Outcome, Scheduler
from scheduler.events import FireEnded
from scheduler.testing import wait_for
from tests.conftest import MakeScheduler
from tests.periodic import bodies
from tests.periodic.conftest import only_direct
from tests.support.recorder import until


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BODIES_LOG", str(tmp_path / "log"))
    (tmp_path / "log").touch()
    return tmp_path / "log"


def run(instance: Scheduler, fn: Any, *, timeout: str | None = None) -> FireEnded:
    with wait_for(instance, FireEnded, job_id="x", timeout=60) as seen:
        instance.register("acme", "x", fn, executor="process", timeout=timeout)
    instance.unregister("acme", "x")
    return seen.event


@only_direct("the road to Postgres is not the point")
def test_a_body_runs_in_another_process_with_its_context(
    make_scheduler: MakeScheduler, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    instance = make_scheduler()
    assert run(instance, bodies.write_pid).outcome is Outcome.SUCCESS
    assert run(instance, bodies.write_pid).outcome is Outcome.SUCCESS
    first, second = (line.split() for line in log.read_text().splitlines())
    assert first[0] == second[0] != str(os.getpid())  # the same child, again
    assert first[1] == "acme"
    assert first[3:] == ["1", "1"]
    assert second[3:] == ["1", "2"]
    assert f"written by {first[0]}" in caplog.text
    instance.cancel()
    until(lambda: not Path(f"/proc/{first[0]}").exists())


@only_direct("the road to Postgres is not the point")
def test_whatever_a_body_does_to_its_process_is_its_outcome(
    make_scheduler: MakeScheduler, log: Path
) -> None:
    instance = make_scheduler()
    ended = run(instance, bodies.fails)
    assert ended.outcome is Outcome.FAILED
    assert (ended.error or "").startswith("ValueError: no paper \\x00\n")
    assert "bodies.py" in (ended.error or "")
    assert run(instance, bodies.exits).outcome is Outcome.FAILED
    died = run(instance, bodies.dies)
    assert (died.outcome, died.error) == (Outcome.FAILED, "its process ended with signal 9")
    assert run(instance, bodies.is_async).outcome is Outcome.SUCCESS
    assert run(instance, bodies.Holder.nested).outcome is Outcome.SUCCESS
    assert log.read_text() == "async\nnested\n"


@only_direct("the road to Postgres is not the point")
def test_a_body_that_holds_the_gil_keeps_its_lease_and_is_killed_at_its_timeout(
    make_scheduler: MakeScheduler, log: Path
) -> None:
    instance = make_scheduler(lease="3s")
    began = time.monotonic()
    ended = run(instance, bodies.holds_the_gil, timeout="5s")
    assert ended.outcome is Outcome.TIMEOUT
    assert ended.error == "killed: its function did not stop when it was asked to"
    assert ended.attempt == 1
    assert time.monotonic() - began >= 5


@only_direct("the road to Postgres is not the point")
def test_a_body_in_another_process_hears_of_its_timeout(
    make_scheduler: MakeScheduler, log: Path
) -> None:
    instance = make_scheduler()
    assert run(instance, bodies.ends_when_told, timeout="3s").outcome is Outcome.TIMEOUT
    assert log.read_text() == "told timeout\n"


@only_direct("nothing is sent")
@pytest.mark.parametrize("fn", [lambda: None, functools.partial(bodies.fails), "bound"])
def test_a_function_that_cannot_be_imported_is_refused(
    make_scheduler: MakeScheduler, fn: Any, log: Path
) -> None:
    instance = make_scheduler()
    with pytest.raises(InvalidOption, match="another process can import"):
        instance.register("acme", "x", instance.start if fn == "bound" else fn, executor="process")
    assert instance.jobs() == []


@only_direct("the road to Postgres is not the point")
def test_what_a_body_starts_is_killed_with_it_and_a_bad_log_line_harms_nobody(
    make_scheduler: MakeScheduler, log: Path
) -> None:
    instance = make_scheduler()
    began = time.monotonic()
    assert run(instance, bodies.leaves_a_process_behind, timeout="1s").outcome is Outcome.TIMEOUT
    assert time.monotonic() - began < 60, "it waited for the process that was left behind"
    assert run(instance, bodies.logs_nonsense).outcome is Outcome.SUCCESS


@only_direct("the road to Postgres is not the point")
def test_a_child_that_died_while_it_waited_costs_no_fire_and_a_short_timeout_counts_from_its_call(
    make_scheduler: MakeScheduler, log: Path
) -> None:
    instance = make_scheduler()
    assert run(instance, bodies.write_pid, timeout="500ms").outcome is Outcome.SUCCESS
    os.kill(int(log.read_text().split()[0]), 9)
    assert run(instance, bodies.write_pid, timeout="500ms").outcome is Outcome.SUCCESS


APP = """
import scheduler
scheduler.initialise({dsn!r}, schema={schema!r}, lease="2s")

@scheduler.register("acme", "heavy", every="300ms", executor="process")
def heavy(ctx):
    with open({log!r}, "a") as file:
        file.write(f"{{ctx.fire_at}}\\n")
"""


def test_an_app_that_initialises_at_the_top_of_its_module_does_not_breed(
    dsn: str, schema: str, tmp_path: Path, connection: psycopg.Connection[Any]
) -> None:
    log = tmp_path / "fires"
    log.touch()
    (tmp_path / "queue.py").write_text(
        "raise RuntimeError('in the way')"
    )  # the current folder is not searched first
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "breeds.py").write_text(APP.format(dsn=dsn, schema=schema, log=str(log)))
    code = f"import sys, time; sys.path.append({str(tmp_path / 'app')!r}); import breeds; time.sleep(60)"
    parent = subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        process_group=0,
        env={**os.environ, "PYTHONPATH": ""},
    )
    try:
        until(lambda: len(log.read_text().splitlines()) >= 5, timeout=60)
        assert connection.execute("SELECT count(*) FROM job_instance").fetchone() == (1,)
        os.killpg(parent.pid, 15)  # as a service is stopped
    finally:
        parent.kill()
        parent.wait()
    fires = log.read_text().splitlines()
    assert len(fires) == len(set(fires))


def test_children_end_with_their_parent_however_it_dies(dsn: str, schema: str, log: Path) -> None:
    code = (
        "import os, time\n"
        "from scheduler import Scheduler\n"
        "from tests.periodic import bodies\n"
        f"s = Scheduler({dsn!r}, schema={schema!r}).start()\n"
        "s.register('acme', 'x', bodies.write_pid, executor='process')\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    try:
        until(lambda: log.read_text().endswith("\n"), timeout=60)
    finally:
        parent.kill()
        parent.wait()
    child = log.read_text().split()[0]
    until(lambda: not Path(f"/proc/{child}").exists())
