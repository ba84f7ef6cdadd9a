"""The algorithms of the contract, sentence by sentence, by a worker out of a configuration."""

import json
from datetime import timedelta
from itertools import pairwise

from scheduler.dialects.client import Client
from scheduler.dialects.standard.queue import StandardQueue
from scheduler.embedded.redis import EmbeddedRedis
from tests.config.conftest import ENTRY, Files, Work, monitored, put
from tests.dialects.values import NOW, job
from tests.support.waiting import wait_for

QUICK = "reaper: {interval: 100ms}"
DEAD = "jobqueue:worker:gone:processing"


def test_heartbeat_is_set_on_fetch_and_refreshed_while_the_job_is_active(
    redis: Client, work: Work
) -> None:
    files = Files(held=True)
    put(redis, "a")
    key = f"jobqueue:processing:worker:{work('worker: {heartbeat_ttl: 5s}').name}"
    wait_for(lambda: files.names, "it runs")
    before = redis.call("PTTL", key)
    assert before > 0

    def refreshed() -> bool:
        nonlocal before
        last, before = before, redis.call("PTTL", key)
        return bool(before > last)

    wait_for(refreshed, "it lives longer")
    files.go.set()


def test_completion_success_moves_the_payload_from_processing_to_completed(
    redis: Client, work: Work
) -> None:
    files = Files(held=True)
    put(redis, "a")
    processing = f"jobqueue:worker:{work().name}:processing"
    wait_for(lambda: files.names, "it runs")
    entry = (ENTRY % ("a", "a", "low")).encode()
    assert redis.call("LRANGE", processing, 0, -1) == [entry]
    files.go.set()
    wait_for(
        lambda: redis.call("LRANGE", "jobqueue:completed", 0, -1) == [entry],
        "it is among the completed",
    )
    assert redis.call("LLEN", processing) == 0


def test_completion_failure_increments_retries_and_requeues(redis: Client, work: Work) -> None:
    files = Files(fails=1)
    put(redis, "a")
    work("worker: {backoff: {base: 50ms}}")
    wait_for(lambda: redis.call("LLEN", "jobqueue:completed"), "it is done")
    [entry] = redis.call("LRANGE", "jobqueue:completed", 0, -1)
    assert (len(files.names), json.loads(entry)["retries"]) == (2, 1)


def test_completion_failure_is_a_dead_letter_after_max_retries(redis: Client, work: Work) -> None:
    files = Files(fails=9)
    put(redis, "a")
    work("worker: {max_retries: 1, backoff: {base: 50ms}}")
    wait_for(lambda: redis.call("LLEN", "jobqueue:dead_letter"), "it is dead")
    [entry] = redis.call("LRANGE", "jobqueue:dead_letter", 0, -1)
    assert (len(files.names), json.loads(entry)["retries"]) == (2, 1)


def test_worker_max_retries_is_not_for_jobs_with_a_policy_of_their_own(
    redis: Client, redis_server: EmbeddedRedis, work: Work
) -> None:
    files = Files(fails=9)
    queue = StandardQueue(redis, "files")
    values = {
        "type": "file",
        "installation": "",
        "payload": b'{"filepath":"a"}',
        "expires_at": NOW + timedelta(36_500),
    }
    queue.push([job(policy={"max_attempts": 1}, **values)], epoch="")
    work("worker: {max_retries: 3, backoff: {base: 50ms}}")
    wait_for(lambda: queue.depths().dead == 1, "it is dead")
    assert files.names == ["a"]


def test_reaper_moves_the_job_of_a_silent_worker_back_to_its_queue(
    redis: Client, work: Work
) -> None:
    files = Files()
    put(redis, "a", where=DEAD)
    work(QUICK)
    wait_for(lambda: files.names == ["a"], "it runs here")
    assert redis.call("EXISTS", DEAD) == 0


def test_reaper_skips_a_worker_whose_heartbeat_exists(
    redis: Client, redis_server: EmbeddedRedis, work: Work
) -> None:
    files = Files()
    redis.call("SET", "jobqueue:processing:worker:gone", "x", "EX", 60)
    put(redis, "a", where=DEAD)
    with monitored(redis_server) as heard:
        work(QUICK)
        for _ in range(4):
            heard("SCAN 0 MATCH jobqueue:worker:")
    assert (files.names, redis.call("LLEN", DEAD)) == ([], 1)
    redis.call("DEL", "jobqueue:processing:worker:gone")
    wait_for(lambda: files.names == ["a"], "it is taken back once it is silent")


def test_reaper_makes_a_dead_letter_once_retries_are_exhausted(redis: Client, work: Work) -> None:
    files = Files()
    redis.call("LPUSH", DEAD, (ENTRY % ("a", "a", "low")).replace('"retries":0', '"retries":2'))
    work(f"{QUICK}\nworker: {{max_retries: 2}}")
    wait_for(lambda: redis.call("LLEN", "jobqueue:dead_letter") == 1, "it is dead")
    assert files.names == []


def test_reaper_makes_a_dead_letter_of_each_entry_that_nobody_can_read(
    redis: Client, work: Work
) -> None:
    files = Files()
    unreadable = [
        b"",
        b"junk",
        b"[]",
        b"\xff",
        b'{"id":5}',
        b'{"id":"a","retries":"x"}',
        b'{"id":"a","retries":null}',
    ]
    for entry in unreadable:
        redis.call("LPUSH", DEAD, entry)
    put(redis, "a", where=DEAD)
    work(QUICK)
    wait_for(lambda: files.names == ["a"], "what is a job is taken back")
    wait_for(
        lambda: redis.call("LLEN", "jobqueue:dead_letter") == len(unreadable), "the others are dead"
    )
    assert sorted(redis.call("LRANGE", "jobqueue:dead_letter", 0, -1)) == sorted(unreadable)


def test_reaper_passes_over_what_is_no_list(redis: Client, work: Work) -> None:
    files = Files()
    redis.call("SET", "jobqueue:worker:a:processing", "no list")
    put(redis, "a", where=DEAD)
    work(QUICK)
    wait_for(lambda: files.names == ["a"], "what is a job is taken back")


def test_completion_of_a_job_with_more_retries_than_can_be_counted(
    redis: Client, work: Work
) -> None:
    files = Files()
    entry = (ENTRY % ("a", "a", "low")).replace('"retries":0', f'"retries":{10**30}')
    redis.call("LPUSH", "jobqueue:low_priority", entry)
    work()
    wait_for(lambda: redis.call("LLEN", "jobqueue:completed") == 1, "it is done")
    assert files.names == ["a"]
    assert redis.call("EXISTS", "jobqueue:attempts") == 0


def test_reaper_scans_with_a_count_of_100(
    redis: Client, redis_server: EmbeddedRedis, work: Work
) -> None:
    Files()
    with monitored(redis_server) as heard:
        work(QUICK)
        assert heard("SCAN 0 MATCH jobqueue:worker:").words[-1] == "100"


def test_reaper_waits_its_interval_with_a_quarter_of_jitter(
    redis: Client, redis_server: EmbeddedRedis, work: Work
) -> None:
    Files()
    with monitored(redis_server) as heard:
        work("reaper: {interval: 200ms}")
        times = [heard("SCAN 0 MATCH jobqueue:worker:").at for _ in range(7)]
    waits = [after - before for before, after in pairwise(times)]
    assert min(waits) > 0.145
    assert max(waits) - min(waits) > 0.005  # not in step
