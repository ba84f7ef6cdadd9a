"""The producer on real folders and a real Redis: what it queues, how fast, and that it queues
nothing twice.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from scheduler import JobContext, handler
from scheduler.dialects.client import Client
from scheduler.dialects.reliable.keys import Keys
from scheduler.dialects.reliable.produce import Intake, entry_of, rfc3339_nano
from scheduler.dialects.reliable.queue import ReliableQueue
from scheduler.errors import ConfigError, QueueError
from scheduler.model.files import File, ProducerRule, Summary
from scheduler.queueing.producer import Producer
from scheduler.queueing.scan import Scan
from tests.dialects.servers import Server, any_binary
from tests.dialects.values import retried
from tests.queueing.conftest import MakeWorker
from tests.support.waiting import WOKEN, rest, wait_for

KEYS = Keys.original()
HIGH, LOW = "jobqueue:high_priority", "jobqueue:low_priority"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made


@pytest.fixture
def server() -> Iterator[Server]:
    """A Redis that the test may harm."""
    made = Server(any_binary()).start()
    yield made
    made.stop()


Produce = Callable[..., Summary]


@pytest.fixture
def produce(redis: Client, folder: Path) -> Produce:
    def run(**changes: Any) -> Summary:
        rule = ProducerRule(**{"scan_dir": str(folder), "rate_limit_per_sec": 0, **changes})
        return Producer(redis, rule, KEYS).run(threading.Event())

    return run


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def write_many(folder: Path, count: int) -> None:
    """Write small files, a thousand in a folder."""
    for number in range(count):
        if number % 1000 == 0:
            inside = folder / f"d{number // 1000}"
            inside.mkdir()
        os.close(os.open(f"{inside}/{number}", os.O_CREAT))


def entries(redis: Client, *lists: str) -> list[dict[str, Any]]:
    """What is queued, the next first."""
    return [
        orjson.loads(each)
        for key in lists or (HIGH, LOW)
        for each in reversed(redis.call("LRANGE", key, 0, -1))
    ]


def names(redis: Client, *lists: str) -> list[str]:
    return sorted(Path(entry["filepath"]).name for entry in entries(redis, *lists))


def file(number: int) -> File:
    return File(f"/data/{number}", number, number, "low")


# The job


def test_job_schema_is_the_originals_json(redis: Client, folder: Path, produce: Produce) -> None:
    write(folder, 'a "b" <c> & \u00e9\n.pdf')
    produce()
    [raw] = redis.call("LRANGE", HIGH, 0, -1)
    [entry] = entries(redis, HIGH)
    assert list(entry) == [
        "id",
        "filepath",
        "filesize",
        "priority",
        "retries",
        "creation_time",
        "trace_id",
        "span_id",
    ]
    path = str(folder / 'a "b" <c> & \u00e9\n.pdf')
    assert (entry["filepath"], entry["filesize"]) == (path, Path(path).stat().st_size)
    assert (entry["priority"], entry["retries"]) == ("high", 0)
    assert re.fullmatch("[0-9a-f]{32}", entry["trace_id"])
    assert re.fullmatch("[0-9a-f]{16}", entry["span_id"])
    assert raw.startswith(b'{"id":"' + entry["id"].encode() + b'","filepath":"')
    seconds, _ = redis.call("TIME")
    assert abs(datetime.fromisoformat(entry["creation_time"]).timestamp() - seconds) < 60


def test_every_job_has_a_trace_of_its_own(redis: Client, folder: Path, produce: Produce) -> None:
    write(folder, "a", "b", "c")
    produce()
    assert (
        len(
            {entry["trace_id"] for entry in entries(redis)}
            | {entry["span_id"] for entry in entries(redis)}
        )
        == 6
    )


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_757_671_200_500_000_000, "2025-09-12T10:00:00.5Z"),
        (1_757_671_200_000_000_010, "2025-09-12T10:00:00.00000001Z"),
    ],
)
def test_creation_time_is_rfc3339_nano(instant: int, text: str) -> None:
    assert rfc3339_nano(instant) == text


def test_a_worker_of_the_original_takes_it_with_brpoplpush(
    redis: Client, folder: Path, produce: Produce
) -> None:
    write(folder, "a.zip")
    produce()
    taken = redis.wait("BRPOPLPUSH", HIGH, KEYS.processing("go"), 1)
    assert orjson.loads(taken)["filepath"] == str(folder / "a.zip")


def test_a_worker_of_ours_handles_it(
    redis: Client, folder: Path, produce: Produce, make_worker: MakeWorker
) -> None:
    seen: list[Any] = []

    @handler("file", queue="files")
    def read(ctx: JobContext, payload: Any) -> None:
        seen.append(payload["filepath"])

    make_worker(queues=["files"], originals={"files": KEYS}, block="5m")
    wait_for(lambda: redis.call("INFO", "clients")["blocked_clients"], "it waits")
    write(folder, "a.pdf", "b.txt")
    produce()
    wait_for(lambda: len(seen) == 2, "both are handled, for it was woken", timeout=WOKEN)
    assert sorted(seen) == [str(folder / "a.pdf"), str(folder / "b.txt")]


def test_origin_queue_is_kept_beside_the_job_for_the_reaper(
    redis: Client, folder: Path, produce: Produce
) -> None:
    write(folder, "a.txt")
    produce()
    [entry] = entries(redis)
    assert redis.call("HGET", "jobqueue:origins", entry["id"]) == LOW.encode()
    taken = redis.call("RPOPLPUSH", LOW, KEYS.processing("go"))
    told = taken.replace(b'"low"', b'"high"')  # whatever it says: it goes where it came from
    redis.call("LPUSH", KEYS.processing("go"), told)
    redis.call("LREM", KEYS.processing("go"), 1, taken)
    queue = ReliableQueue(redis, "files", worker="reaper", keys=KEYS)
    assert [queue.recover(retried) for _ in range(2)] == [0, 1]
    [member] = redis.call("ZRANGE", "jobqueue:retries", 0, -1)
    assert KEYS.levels[int(member[:1]) - 1] == LOW


# Its keys


def test_scan_dir_is_gone_through_to_the_bottom(
    redis: Client, folder: Path, produce: Produce
) -> None:
    deep = "/".join(["d"] * 200) + "/z"
    write(folder, "a", "b/c", deep)
    summary = produce()
    assert (summary.queued, summary.finished) == (Counter(low=3), True)
    assert {entry["filepath"] for entry in entries(redis)} == {
        str(folder / name) for name in ("a", "b/c", deep)
    }


def test_scan_dir_may_be_relative_and_is_told_absolute(
    redis: Client, folder: Path, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    write(folder, "in/a")
    produce(scan_dir="./in")
    assert [entry["filepath"] for entry in entries(redis)] == [str(folder / "in/a")]


def test_scan_dir_that_cannot_be_read_is_an_error_that_names_it(
    folder: Path, produce: Produce
) -> None:
    write(folder, "a")
    for missing, why in (("none", "No such file"), ("a", "Not a directory")):
        with pytest.raises(
            ConfigError, match=rf"^producer\.scan_dir: '.*/{missing}' cannot be read: {why}"
        ):
            produce(scan_dir=str(folder / missing))


def test_scan_dir_that_is_not_utf8_is_an_error_that_names_it(
    folder: Path, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = os.fsencode(folder) + b"/\xff"
    os.mkdir(inside)  # noqa: PTH102
    monkeypatch.chdir(os.fsdecode(inside))
    for scan_dir in (".", "a\0b"):
        with pytest.raises(ConfigError, match="producer.scan_dir: .* is not a path in UTF-8"):
            produce(scan_dir=scan_dir)


def test_scan_dir_may_be_deeper_than_there_are_handles(folder: Path) -> None:
    place = folder
    for _ in range(400):
        place /= "d"
        place.mkdir()
        (place / "f").touch()
    script = f"""
import resource, threading
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from scheduler.model.files import ProducerRule, Summary
from scheduler.queueing.scan import Scan
summary = Summary()
print(len(list(Scan(ProducerRule(scan_dir={str(folder)!r}), summary, threading.Event()))), summary.named)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "400 []\n"


def test_include_globs(redis: Client, folder: Path, produce: Produce) -> None:
    write(folder, "a.txt", "b/c.txt", "b/d/e.csv", "b/d/f.txt")
    summary = produce(include_globs=("b/**/*.txt", "**/*.csv"))
    assert names(redis) == ["c.txt", "e.csv", "f.txt"]
    assert summary.excluded == 1


def test_exclude_globs(redis: Client, folder: Path, produce: Produce) -> None:
    write(folder, "a", "a.tmp", ".DS_Store", "b/.DS_Store", "cache/x/y", "cache/z")
    summary = produce(exclude_globs=("**/*.tmp", "**/.DS_Store", "cache/**"))
    assert names(redis) == ["a"]
    assert (
        summary.excluded == 4
    )  # a folder that is excluded whole counts as one: nobody looks into it


def test_default_priority(redis: Client, folder: Path, produce: Produce) -> None:
    write(folder, "a", "b.pdf")
    produce(default_priority="high")
    assert names(redis, HIGH) == ["a", "b.pdf"]
    with pytest.raises(
        ConfigError, match=r"^producer\.default_priority: 'bulk' is none of high, low"
    ):
        produce(default_priority="bulk")


def test_high_priority_exts(redis: Client, folder: Path, produce: Produce) -> None:
    write(folder, "a.pdf", "b.PDF", "c.pdf.txt", "d.tar.gz", "e.gz", "pdf")
    summary = produce(high_priority_exts=(".pdf", ".TAR.gz"))
    assert names(redis, HIGH) == ["a.pdf", "b.PDF", "d.tar.gz"]
    assert {entry["priority"] for entry in entries(redis, LOW)} == {"low"}
    assert summary.queued == Counter(high=3, low=3)


def test_high_priority_exts_need_a_priority_high(redis: Client, folder: Path) -> None:
    keys = Keys.original({"urgent": "q:urgent", "low": "q:low"})
    with pytest.raises(ConfigError, match=r"^producer\.high_priority_exts: must be empty"):
        Producer(redis, ProducerRule(scan_dir=str(folder)), keys)
    write(folder, "a.pdf")
    rule = ProducerRule(scan_dir=str(folder), high_priority_exts=(), default_priority="urgent")
    Producer(redis, rule, keys).run(threading.Event())
    assert redis.call("LLEN", "q:urgent") == 1


def test_rate_limit_per_sec_0_is_off(redis: Client, folder: Path, produce: Produce) -> None:
    write_many(folder, 1000)
    assert produce(rate_limit_per_sec=0).queued.total() == 1000
    assert redis.call("EXISTS", "jobqueue:rate_limit:producer") == 0


def test_rate_limit_key_is_what_producers_share(redis: Client) -> None:
    def intake(key: str) -> Intake:
        return Intake(redis, ProducerRule(rate_limit_per_sec=1, rate_limit_key=key), KEYS)

    first = [entry_of(file(number)) for number in range(3)]
    assert len(intake("mine").put(first[:1]).queued) == 1
    assert len(intake("mine").put(first[1:2]).waiting) == 1
    assert len(intake("yours").put(first[2:]).queued) == 1


def test_the_manual_names_every_key_with_its_default_and_its_test() -> None:
    text = (Path(__file__).parents[2] / "docs/producer.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*)$", text, re.MULTILINE))
    assert set(rows) == {field.name for field in fields(ProducerRule)}
    tests = Path(__file__).read_text()
    for field in fields(ProducerRule):
        values = field.default if isinstance(field.default, tuple) else (field.default,)
        assert all(f"`{value}`" in rows[field.name] for value in values)
        named = re.findall(r"`(test_\w+)`", rows[field.name])
        assert named
        assert all(f"def {name}(" in tests and field.name in name for name in named)


# The rate


def test_nothing_bursts_however_long_nobody_came(redis: Client) -> None:
    intake = Intake(redis, ProducerRule(rate_limit_per_sec=100), KEYS)
    waiting = [entry_of(file(number)) for number in range(60)]
    seconds, microseconds = redis.call("TIME")
    begun = seconds + microseconds / 1e6
    while waiting:
        done = intake.put(waiting)
        assert len(done.queued) <= 11  # what the rate is in a tenth of a second, and one
        waiting = done.waiting
        rest(done.pause)
    seconds, microseconds = redis.call("TIME")
    assert seconds + microseconds / 1e6 - begun > 0.47


def test_a_rate_that_cannot_be_true_does_not_hold_anybody_up(redis: Client) -> None:
    redis.call(
        "SET", "jobqueue:rate_limit:producer", "9000000000000000"
    )  # Redis' clock was set back
    intake = Intake(redis, ProducerRule(rate_limit_per_sec=100), KEYS)
    waiting = [entry_of(file(number)) for number in range(12)]
    done = intake.put(waiting)
    assert 0 < done.pause < 0.2
    rest(done.pause)
    assert intake.put(done.waiting).queued
    assert redis.call("PTTL", "jobqueue:rate_limit:producer") < 200  # or it is gone already
    redis.call("SET", "jobqueue:rate_limit:producer", "no number")
    assert intake.put([entry_of(file(99))]).queued


def test_what_is_unchanged_uses_up_no_rate(redis: Client, folder: Path, produce: Produce) -> None:
    write_many(folder, 1000)
    produce()
    assert produce(rate_limit_per_sec=1).unchanged == 1000  # or it would take a quarter of an hour
    assert redis.call("EXISTS", "jobqueue:rate_limit:producer") == 0


def test_a_high_rate_takes_few_round_trips(redis: Client, folder: Path, produce: Produce) -> None:
    write_many(folder, 3000)
    redis.call("CONFIG", "RESETSTAT")
    produce(rate_limit_per_sec=6000)
    stats = redis.call("INFO", "commandstats")
    calls = stats["cmdstat_evalsha"]["calls"] if isinstance(stats, dict) else stats
    assert calls < 60


# Once


def test_a_file_already_queued_is_not_queued_again_unless_it_changed(
    redis: Client, folder: Path, produce: Produce
) -> None:
    write(folder, "same", "touched", "grown", "moved")
    assert produce().queued.total() == 4
    assert (produce().queued.total(), produce().unchanged) == (0, 4)
    before = (folder / "grown").stat()
    os.utime(folder / "touched", ns=(0, before.st_mtime_ns + 1))
    (folder / "grown").write_text("more than before")
    os.utime(folder / "grown", ns=(0, before.st_mtime_ns))
    (folder / "moved").rename(folder / "away")
    summary = produce()
    assert (summary.queued.total(), summary.unchanged) == (3, 1)
    assert names(redis) == ["away", "grown", "grown", "moved", "same", "touched", "touched"]


def test_a_file_is_not_queued_again_when_its_job_is_done(
    redis: Client, folder: Path, produce: Produce
) -> None:
    write(folder, "a")
    produce()
    redis.call("RPOP", LOW)
    assert (produce().queued.total(), redis.call("LLEN", LOW)) == (0, 0)


def test_a_file_that_is_met_twice_in_a_batch_is_queued_once(redis: Client) -> None:
    done = Intake(redis, ProducerRule(), KEYS).put([entry_of(file(1)), entry_of(file(1))])
    assert (len(done.queued), done.unchanged, redis.call("LLEN", LOW)) == (1, 1, 1)


def test_two_producers_at_once_queue_each_file_once(
    redis: Client, folder: Path, produce: Produce
) -> None:
    write_many(folder, 2000)
    made: list[Summary] = []
    threads = [threading.Thread(target=lambda: made.append(produce())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(summary.queued.total() for summary in made) == 2000
    assert len({entry["id"] for entry in entries(redis)}) == redis.call("LLEN", LOW) == 2000


def test_a_redis_that_forgot_its_queues_gets_everything_again(
    redis: Client, folder: Path, produce: Produce
) -> None:
    write(folder, "a", "b")
    produce()
    redis.call("FLUSHALL")
    assert produce().queued.total() == 2


def test_what_a_list_did_not_take_is_not_remembered(
    redis: Client, folder: Path, produce: Produce
) -> None:
    write(folder, "a.txt", "b.txt")
    redis.call("SET", LOW, "no list")
    with pytest.raises(QueueError, match="WRONGTYPE"):
        produce()
    redis.call("UNLINK", LOW)
    assert produce().queued == {"low": 2}


def test_what_is_not_seen_any_more_is_forgotten_after_a_while(redis: Client) -> None:
    kept = timedelta(hours=1)
    intake = Intake(redis, ProducerRule(rate_limit_per_sec=0), KEYS, remembered=kept)
    seen, gone = entry_of(file(1)), entry_of(file(2))
    assert len(intake.put([seen, gone]).queued) == 2
    for _ in range(2):
        redis.call("HINCRBY", "jobqueue:origins", "since", -3_600_010)  # as if an hour had passed
        assert intake.put([seen]).unchanged == 1
    assert intake.put([seen, gone]).queued == [gone.file]
    for key in ("jobqueue:origins", "jobqueue:origins:before"):
        assert 0 < redis.call("PTTL", key) <= 7_200_000, "nothing is left of it after a while"


# Trouble


def test_links_in_a_circle_and_links_to_folders_are_reported_and_skipped(
    redis: Client, folder: Path, produce: Produce
) -> None:
    write(folder, "in/a")
    for name, target in (
        ("in/up", ".."),
        ("one", "two"),
        ("two", "one"),
        ("gone", "nowhere"),
        ("link", "in/a"),
    ):
        (folder / name).symlink_to(target)
    summary = produce()
    assert names(redis) == ["a", "link"]
    assert dict(summary.named) == {
        str(folder / "in/up"): "a link to a folder is not followed",
        str(folder / "one"): "links in a circle",
        str(folder / "two"): "links in a circle",
        str(folder / "gone"): "a link that leads nowhere",
    }


def test_names_that_are_not_utf8_are_reported_and_skipped(
    redis: Client, folder: Path, produce: Produce
) -> None:
    write(folder, "a")
    raw = os.fsencode(folder)
    Path(os.fsdecode(raw + b"/d\xff")).mkdir()
    for name in (b"/d\xff/inside", b"/f\xfe.pdf"):
        os.close(os.open(raw + name, os.O_CREAT))
    summary = produce()
    assert names(redis) == ["a"]
    assert sorted(summary.named) == [
        (f"{folder}/d\\xff", "its name is not UTF-8"),
        (f"{folder}/f\\xfe.pdf", "its name is not UTF-8"),
    ]


def test_what_is_no_file_is_reported_and_skipped(
    redis: Client, folder: Path, produce: Produce
) -> None:
    os.mkfifo(folder / "pipe")
    assert produce().named == [(str(folder / "pipe"), "neither a file nor a folder")]


def test_unreadable_files_and_folders_are_reported_and_skipped(folder: Path) -> None:
    write(folder, "a", "secret", "closed/b")
    (folder / "secret").chmod(0)
    (folder / "closed").chmod(0)
    root = os.geteuid() == 0  # to whom everything is readable
    above = {
        path: path.stat().st_mode
        for path in folder.parents
        if root and path.stat().st_mode & 0o5 != 0o5
    }
    summary = Summary()
    try:
        if root:
            for path in above:
                path.chmod(0o755)
            os.seteuid(65534)
        found = list(Scan(ProducerRule(scan_dir=str(folder)), summary, threading.Event()))
    finally:
        if root:
            os.seteuid(0)
        for path, mode in above.items():
            path.chmod(mode)
        (folder / "closed").chmod(0o700)
    assert [each.path for each in found] == [str(folder / "a")]
    assert sorted(summary.named) == [
        (str(folder / "closed"), "no permission to read it"),
        (str(folder / "secret"), "no permission to read it"),
    ]


def test_files_that_vanish_are_reported_and_skipped(folder: Path) -> None:
    write(folder, "a", "b", "c", "d/e")
    summary = Summary()
    scan = iter(Scan(ProducerRule(scan_dir=str(folder)), summary, threading.Event()))
    first = next(scan)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    assert list(scan) == []
    assert summary.skipped == Counter({"it vanished meanwhile": 3})
    assert not Path(first.path).exists()


def test_only_the_first_hundred_that_were_skipped_are_named(folder: Path, produce: Produce) -> None:
    for number in range(150):
        (folder / f"l{number}").symlink_to("nowhere")
    summary = produce()
    assert (len(summary.named), summary.skipped.total()) == (100, 150)


def test_a_redis_that_is_away_is_waited_for(
    server: Server, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_many(folder, 600)
    server.stop()
    client = Client(server.url)
    made: list[Summary] = []
    producer = Producer(client, ProducerRule(scan_dir=str(folder), rate_limit_per_sec=0), KEYS)
    thread = threading.Thread(target=lambda: made.append(producer.run(threading.Event())))
    thread.start()
    wait_for(lambda: len(caplog.records) >= 2, "it tries again")
    server.start()
    thread.join(60)
    assert made[0].queued.total() == client.call("LLEN", LOW) == 600
    client.close()


def test_a_redis_that_is_full_is_waited_for(
    server: Server, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, "a", "b.pdf")
    client = Client(server.url)
    client.call("CONFIG", "SET", "maxmemory", "1")
    made: list[Summary] = []
    producer = Producer(client, ProducerRule(scan_dir=str(folder)), KEYS)
    thread = threading.Thread(target=lambda: made.append(producer.run(threading.Event())))
    thread.start()
    wait_for(lambda: caplog.records, "it is refused")
    assert client.call("DBSIZE") == 0  # nothing is half done
    client.call("CONFIG", "SET", "maxmemory", "0")
    thread.join(60)
    assert made[0].queued == Counter(high=1, low=1)
    client.close()


def test_a_batch_that_was_not_answered_is_not_queued_twice(
    server: Server, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_many(folder, 600)
    client = Client(f"{server.url}?timeout=300ms")
    rule = ProducerRule(scan_dir=str(folder), rate_limit_per_sec=0)
    Intake(client, rule, KEYS).put([entry_of(file(1))])  # now Redis knows the script by its hash
    client.call("DEL", LOW)
    pid = server.pid
    made: list[Summary] = []
    thread = threading.Thread(
        target=lambda: made.append(Producer(client, rule, KEYS).run(threading.Event()))
    )
    os.kill(pid, signal.SIGSTOP)
    thread.start()
    # What was sent is in its socket, and is done when it goes on.
    wait_for(lambda: caplog.records, "its deadline has passed")
    os.kill(pid, signal.SIGCONT)
    thread.join(60)
    assert made[0].finished
    assert made[0].unchanged > 0  # those that had arrived
    assert len({entry["id"] for entry in entries(client)}) == client.call("LLEN", LOW) == 600
    client.close()


def test_a_redis_that_refuses_us_is_an_error(folder: Path) -> None:
    write(folder, "a")
    server = Server(any_binary(), "--requirepass", "secret").start()
    try:
        client = Client(server.url)
        with pytest.raises(QueueError, match="password|Authentication"):
            Producer(client, ProducerRule(scan_dir=str(folder)), KEYS).run(threading.Event())
        client.close()
    finally:
        server.stop()


def test_the_rights_in_the_manual_are_enough(server: Server) -> None:
    text = (Path(__file__).parents[2] / "docs/producer.md").read_text()
    [line] = re.findall(r"^ +(ACL SETUSER producer .+)$", text, re.MULTILINE)
    server.admin(*line.split())
    client = Client(server.url.replace("//", "//producer:secret@"))
    intake = Intake(client, ProducerRule(), KEYS, remembered=timedelta(milliseconds=1))
    for number in range(3):  # what is remembered is renamed, and then forgotten
        assert len(intake.put([entry_of(file(number))]).queued) == 1
        rest(0.01)
    client.close()


def test_a_stop_ends_it_between_batches_and_the_next_run_goes_on(
    redis: Client, folder: Path
) -> None:
    write_many(folder, 600)
    stop = threading.Event()
    rule = ProducerRule(scan_dir=str(folder), rate_limit_per_sec=100)
    first = Producer(redis, rule, KEYS, progress=lambda so_far: stop.set()).run(stop)
    assert not first.finished
    assert 0 < first.queued.total() < 600
    second = Producer(redis, ProducerRule(scan_dir=str(folder), rate_limit_per_sec=0), KEYS).run(
        threading.Event()
    )
    assert (second.unchanged, second.queued.total()) == (
        first.queued.total(),
        600 - first.queued.total(),
    )
    assert len({entry["id"] for entry in entries(redis)}) == redis.call("LLEN", LOW) == 600


def test_a_stop_ends_the_wait_for_redis_and_for_the_rate(server: Server, folder: Path) -> None:
    write_many(folder, 10)
    client = Client(server.url)
    for away in (False, True):
        if away:
            server.stop()
        stop = threading.Event()
        threading.Timer(0.3, stop.set).start()
        summary = Producer(
            client, ProducerRule(scan_dir=str(folder), rate_limit_per_sec=1), KEYS
        ).run(stop)
        assert not summary.finished
    client.close()


def test_memory_does_not_grow_with_the_number_of_files(
    redis: Client, folder: Path, produce: Produce, full: bool
) -> None:
    write_many(folder, 1000)
    (folder / "d0").rename(folder / "few")
    peaks = []
    for inside, count in (("few", 1000), (".", 100_000 if full else 8000)):
        if inside == ".":
            write_many(folder, count)
        tracemalloc.start()
        summary = produce(scan_dir=str(folder / inside))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert summary.queued.total() == count
    assert peaks[1] < peaks[0] + 300_000
