"""docs/conveyor.md: each statement names its test, and the rights that it lists are enough."""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from scheduler.conveyor import Client as Conveyor
from scheduler.dialects.client import Client, script
from scheduler.dialects.conveyor.admin import ConveyorAdmin
from scheduler.dialects.conveyor.queue import ConveyorQueue
from scheduler.dialects.interface import BegunMark, Cancelling, Known, Note, Renewed
from scheduler.embedded.redis import EmbeddedRedis
from scheduler.errors import QueueError
from scheduler.model.policies import RETRY
from scheduler.model.states import State
from tests.dialects.values import ABOUT, back, ended, job, retried
from tests.support.redis_urls import with_credentials
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/conveyor.md").read_text("utf-8")
LINES = {
    words[2]: words[1:]
    for words in map(str.split, re.findall(r"^ACL SETUSER .+$", DOCUMENT, re.MULTILINE))
}
SCRIPTS = {
    "worker": ["finish", "leave", "renew", "silent", "held", "waits", "crew/store"],
    "scheduler": [
        *("settling/acknowledge", "settling/hand_over", "crew/live"),
        *("push", "known", "cancel", "depths", "begin", "waits", "others"),
        *("silent", "held", "finish"),
    ],
    "client": ["add"],
}


def test_each_statement_about_conveyor_names_its_test() -> None:
    tests = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert set(re.findall(r"`(test_\w+)`", DOCUMENT)) - tests == set()
    for statement in re.findall(
        r"^(?:- |\| `).+?(?=\n(?:- |\n|\| |#)|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL
    ):
        assert "test_" in statement, f"no test is named for: {statement[:80]}"


@pytest.mark.parametrize("role", SCRIPTS)
def test_the_line_has_every_command_of_the_scripts_of_conveyor(role: str) -> None:
    allowed = {word[1:].upper().partition("|")[0] for word in LINES[role] if word.startswith("+")}
    texts = [script(*f"conveyor/{name}".split("/")[-2:]).text for name in SCRIPTS[role]]
    assert {
        command for each in texts for command in re.findall(r"(?:redis\.p?call|try)\('(\w+)'", each)
    } <= allowed


def test_few_rights_are_enough_for_conveyor(redis: Client, redis_server: EmbeddedRedis) -> None:
    urls = {}
    for role, words in LINES.items():
        redis.call("ACL", *words)
        urls[role] = with_credentials(redis_server.url, role, "secret")
    as_worker, as_scheduler = Client(urls["worker"]), Client(urls["scheduler"])
    try:
        queue = ConveyorQueue(as_worker, "mail", worker="w1", keys="upstream")
        ring = ConveyorQueue(as_scheduler, "mail", installation="3f1e", keys="upstream")
        ring.begin("1")
        ring.push([job() for _ in range(4)], epoch="1")
        assert ring.epoch() == "1"
        one, two, three, four = queue.fetch(4, timeout=0.1)
        queue.fetch(0, timeout=0.01)
        assert ring.cancel([one.job.id]) == [Cancelling.RUNNING]
        assert queue.renew({one: Note(1.0)}, lease=queue.lease, about=ABOUT) == [Renewed.CANCEL]
        crew = ConveyorAdmin(as_scheduler, "mail", keys="upstream").workers(9)
        assert [each.holds for each in crew.workers] == [ABOUT.holds]
        assert len(queue.held()) == 4
        assert queue.recover(retried) == 0
        queue.retry_defaults.store(RETRY)
        assert ring.retry_defaults.read("w1") == queue.retry_defaults.read("w1") == RETRY
        ends = [
            ended(one),
            ended(two, State.FAILED, error="x"),
            retried(three, timedelta(hours=1)),
            back(four),
        ]
        assert queue.finish(ends)[0] == [True] * 4
        assert ring.known([one.job.id]) == [Known(None, 1)]
        assert ring.depths().unsettled == 2
        ring.push([job(id=three.job.id, feed=2)], epoch="1")
        ring.outcomes(10, timeout=0)
        ring.hand_over(ring.outcomes(10, timeout=1))
        ring.acknowledge(wait_for(lambda: ring.outcomes(10, timeout=1), "what was handed over"))
        with Conveyor(urls["client"], "upstream") as client:
            parent = client.add(b"", type="mail")
            client.add(b"", type="mail", parent=parent)
            client.add(b"", type="mail", predecessor=parent)
        for _ in range(4):
            queue.finish([ended(each) for each in queue.fetch(5, timeout=0)])
        queue.leave()
        ring.push([job()], epoch="1")
        lost = ConveyorQueue(
            as_worker, "mail", worker="w2", keys="upstream", lease=timedelta(milliseconds=50)
        )
        assert len(lost.fetch(1, timeout=1, first=1, begun=BegunMark(1, 0))) == 1
        wait_for(lambda: ring.recover(retried, foreign=False), "the lease is recovered")
        for opened in (as_worker, as_scheduler):
            with pytest.raises(QueueError):
                opened.call("GET", "elsewhere")
    finally:
        as_worker.close()
        as_scheduler.close()
        for role in LINES:
            redis.call("ACL", "DELUSER", role)
