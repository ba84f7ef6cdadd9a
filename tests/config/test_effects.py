"""What keys of `worker` and `reaper` do: a worker out of a configuration, on a real Redis."""

from itertools import pairwise

import pytest

from scheduler import ConfigError, handler
from scheduler.dialects.client import Client
from scheduler.embedded.redis import EmbeddedRedis
from tests.config.conftest import ENTRY, Files, Work, monitored, put
from tests.dialects.servers import any_binary, cluster
from tests.support.waiting import rest, wait_for


def test_worker_count_is_how_many_handlers_run_at_once(redis: Client, work: Work) -> None:
    files = Files(held=True)
    put(redis, *"abcde")
    work("worker: {count: 2}")
    wait_for(lambda: len(files.names) == 2, "two at once")
    rest(0.2)
    assert len(files.names) == 2
    files.go.set()
    wait_for(lambda: len(files.names) == 5, "the others")


def test_worker_heartbeat_ttl_is_the_lease(redis: Client, work: Work) -> None:
    files = Files(held=True)
    put(redis, "a")
    worker = work("worker: {heartbeat_ttl: 7s}")
    wait_for(lambda: files.names, "it runs")
    left = redis.call("PTTL", f"jobqueue:processing:worker:{worker.name}")
    assert 4000 < left <= 7000
    files.go.set()


def test_worker_max_retries_and_backoff_are_for_jobs_without_a_policy(
    redis: Client, work: Work
) -> None:
    files = Files(fails=3)
    put(redis, "a")
    work("worker: {max_retries: 2, backoff: {base: 100ms, max: 150ms}}")
    wait_for(lambda: redis.call("LLEN", "jobqueue:dead_letter"), "it is dead")
    assert len(files.names) == 3
    first, second = files.at[1] - files.at[0], files.at[2] - files.at[1]
    assert first >= 0.1
    assert second >= 0.15


def test_worker_priorities_and_queues_name_the_lists_and_their_order(
    redis: Client, work: Work
) -> None:
    files = Files()
    put(redis, "c", where="in:slow", priority="slow")
    put(redis, "b", where="in:soon", priority="soon")
    put(redis, "a", where="in:now", priority="now")
    work(
        "worker: {count: 1, priorities: [now, soon, slow], queues: {now: 'in:now', soon: "
        "'in:soon', slow: 'in:slow'}}"
    )
    wait_for(lambda: len(files.names) == 3, "all of them")
    assert files.names == ["a", "b", "c"]


def test_worker_queues_have_a_retry_in_the_list_of_its_priority(redis: Client, work: Work) -> None:
    files = Files(fails=1)
    put(redis, "a", where="in:soon", priority="soon")
    worker = work(
        "worker: {priorities: [now, soon, slow], queues: {now: 'in:now', soon: 'in:soon', slow: "
        "'in:slow'},"
        " backoff: {base: 300ms}}"
    )
    wait_for(lambda: redis.call("ZCARD", "in:retries"), "it waits")
    worker.stop()
    [member] = redis.call("ZRANGE", "in:retries", 0, -1)
    worker = work(
        "worker: {priorities: [now, soon, slow], queues: {now: 'in:now', soon: 'in:soon', slow: "
        "'in:slow'}}"
    )
    wait_for(lambda: len(files.names) == 2, "its second attempt")
    assert b"now soon soon slow slow".split()[int(member[:1]) - 1] == b"soon"


def test_worker_processing_list_pattern_and_heartbeat_key_pattern(
    redis: Client, work: Work
) -> None:
    files = Files(held=True)
    put(redis, "a")
    worker = work("worker: {processing_list_pattern: 'p:%s', heartbeat_key_pattern: '%s:alive'}")
    wait_for(lambda: files.names, "it runs")
    assert redis.call("LLEN", f"p:{worker.name}") == 1
    assert redis.call("EXISTS", f"{worker.name}:alive") == 1
    files.go.set()
    wait_for(lambda: redis.call("LLEN", f"p:{worker.name}") == 0, "it is done")


def test_worker_processing_list_pattern_is_where_the_reaper_looks(
    redis: Client, work: Work
) -> None:
    files = Files()
    put(redis, "a", where="p:gone")  # of a worker of the original that died
    work("worker: {processing_list_pattern: 'p:%s'}\nreaper: {interval: 100ms}")
    wait_for(lambda: files.names == ["a"], "it is taken back")
    assert redis.call("LLEN", "p:gone") == 0


def test_worker_completed_list(redis: Client, work: Work) -> None:
    Files()
    put(redis, "a")
    work("worker: {completed_list: done}")
    wait_for(lambda: redis.call("LLEN", "done") == 1, "it is there")


def test_worker_dead_letter_list(redis: Client, work: Work) -> None:
    Files(fails=1)
    put(redis, "a")
    work("worker: {dead_letter_list: dead, max_retries: 0}")
    wait_for(lambda: redis.call("LLEN", "dead") == 1, "it is there")


def test_worker_file_queue_also_has_its_own_keys(redis: Client, work: Work) -> None:
    files = Files()
    put(redis, "a")
    put(redis, "b", where="jobqueue:{files}:low")
    work("queues: {files: {dialect: reliable}}")
    wait_for(lambda: sorted(files.names) == ["a", "b"], "both")


def test_worker_file_queue_needs_a_handler_of_files(redis: Client, work: Work) -> None:
    handler("other", queue="files")(lambda ctx, payload: None)
    put(redis, "a")
    assert len(work()._consumers) == 1
    assert redis.call("LLEN", "jobqueue:low_priority") == 1


def test_worker_fetch_is_told_to_the_worker(redis: Client, work: Work) -> None:
    Files()
    assert [
        work(f"worker: {{fetch: {each}}}")._settings.fetch == "weighted"
        for each in ("strict", "weighted")
    ] == [
        False,
        True,
    ]


def test_circuit_breaker_leaves_a_queue_alone_whose_jobs_fail(redis: Client, work: Work) -> None:
    files = Files(fails=99)
    put(redis, *map(str, range(20)))
    work(
        "worker: {count: 1, max_retries: 0}\n"
        "circuit_breaker: {failure_threshold: 1, min_samples: 2, window: 1m, cooldown_period: 1h}"
    )
    wait_for(lambda: redis.call("LLEN", "jobqueue:dead_letter") >= 2, "two failures")

    def waiting() -> int:
        return int(redis.call("LLEN", "jobqueue:low_priority"))

    wait_for(
        lambda: redis.call("LLEN", "jobqueue:dead_letter") + waiting() == 20,
        "the others are put back",
    )
    assert waiting() >= 10
    assert len(files.names) == 20 - waiting()


def test_circuit_breaker_cooldown_period_is_how_long_nothing_is_taken(
    redis: Client, work: Work
) -> None:
    files = Files(fails=2)
    put(redis, *map(str, range(9)))
    work(
        "worker: {count: 1, max_retries: 0}\n"
        "circuit_breaker: {failure_threshold: 0.1, min_samples: 2, window: 1m, cooldown_period: "
        "700ms}"
    )
    wait_for(
        lambda: redis.call("LLEN", "jobqueue:completed") == 7,
        "the probe succeeds, and the others follow",
    )
    waits = [after - before for before, after in pairwise(files.at)]
    assert [wait for wait in waits if wait >= 0.65] == [max(waits)]


def test_redis_username_password_and_db_are_those_of_our_connections(
    redis: Client, redis_server: EmbeddedRedis, work: Work
) -> None:
    Files()
    redis.call("ACL", "SETUSER", "ada", "on", ">trout77", "~*", "&*", "+@all")
    work("redis: {username: ada, password: trout77, db: 3}")
    try:
        wait_for(
            lambda: {b"user=ada", b"db=3"} <= set(redis.call("CLIENT", "LIST").split()),
            "connections of hers",
        )
    finally:
        redis.call("ACL", "DELUSER", "ada")


def test_worker_brpoplpush_timeout_is_how_long_one_wait_lasts(
    redis: Client, redis_server: EmbeddedRedis, work: Work
) -> None:
    Files()
    with monitored(redis_server) as heard:
        work("worker: {brpoplpush_timeout: 250ms}")
        waits = [float(heard("BLPOP").words[-1]) for _ in range(4)]
    assert 0.2 < max(waits) <= 0.25


def test_reaper_scan_count_is_the_size_of_a_page(
    redis: Client, redis_server: EmbeddedRedis, work: Work
) -> None:
    Files()
    with monitored(redis_server) as heard:
        work("reaper: {interval: 50ms, scan_count: 7}")
        assert heard("SCAN 0 MATCH jobqueue:worker:").words[-1] == "7"


def test_reaper_base_delay_is_the_pause_between_pages(
    redis: Client, redis_server: EmbeddedRedis, work: Work
) -> None:
    Files()
    redis.call("MSET", *(part for number in range(50) for part in (f"other:{number}", "x")))
    with monitored(redis_server) as heard:
        work("reaper: {interval: 50ms, scan_count: 1, base_delay: 100ms}")
        first, second = heard("SCAN 0 MATCH jobqueue:worker:"), heard("SCAN ")
        assert second.words[1] != "0"
        assert second.at - first.at > 0.05


def test_reaper_interval_is_how_often_silent_workers_are_looked_for(
    redis: Client, redis_server: EmbeddedRedis, work: Work
) -> None:
    Files()
    with monitored(redis_server) as heard:
        work("reaper: {interval: 100ms}")
        first, *_, last = [heard("SCAN 0 MATCH jobqueue:worker:").at for _ in range(6)]
        assert 0.35 < last - first < 3.0


def test_worker_queues_of_a_cluster_need_one_hash_tag(work: Work) -> None:
    files = Files()
    tagged = """
    worker:
      queues: {high: 'q:{f}:high', low: 'q:{f}:low'}
      processing_list_pattern: 'q:{f}:worker:%s:processing'
      heartbeat_key_pattern: 'q:{f}:processing:worker:%s'
      completed_list: 'q:{f}:completed'
      dead_letter_list: 'q:{f}:dead'
    """
    with cluster(any_binary()) as house:
        with pytest.raises(ConfigError, match="worker.queues: a cluster needs one hash tag"):
            work(redis_addr=house.url)
        worker = work(tagged, redis_addr=house.url)
        house.run("LPUSH", "q:{f}:low", ENTRY % ("a", "a", "low"))
        wait_for(lambda: files.names == ["a"], "it runs")
        worker.stop()
