"""Each key and rule of the contract, by its name: what it may be, and what it becomes."""

import os
from datetime import timedelta

import pytest

from scheduler.cli import rules
from scheduler.model.addresses import RedisOptions
from scheduler.model.reaper import ReaperRule
from tests.config.conftest import Read, Wrong

CPUS = os.cpu_count() or 1


def redis(read: Read, text: str = "", **environment: str) -> RedisOptions:
    found = rules.redis_options(read(f"redis: {{{text}}}", **environment).values)
    assert found is not None
    return found


def test_redis_addr_is_a_host_hosts_or_a_url(read: Read, wrong: Wrong) -> None:
    assert redis(read).addresses == ("localhost:6379",)
    assert redis(read, "addr: 'a:1'").addresses == ("a:1",)
    assert redis(read, "addr: ['a:1', 'b:2']").addresses == ("a:1", "b:2")
    assert redis(read, REDIS_ADDR="redis://ada:pw@h:7/3") == redis(
        read, "addr: 'h:7', username: ada, password: pw, db: 3"
    )
    assert rules.redis_options(read("redis: {addr: null}").values) is None
    for text in ("[]", "5", "['redis://a', b]"):
        assert wrong(f"redis: {{addr: {text}}}")[0].startswith("redis.addr: must be")
    assert wrong("redis: {addr: 'a:b:c'}")[0].startswith("redis.addr: address 1 is not a host")
    assert wrong("redis: {addr: 'http://h'}")[0].startswith("redis.addr: must be a URL")


def test_redis_addr_has_no_option_that_would_do_nothing(read: Read, wrong: Wrong) -> None:
    lines = wrong(
        "redis: {addr: "
        "'redis://h?timeout=9s&dial_timeout=1s&max_retries=7&max_connections=5&min_idle=1'}"
    )
    assert [line.rpartition(" ")[2] for line in lines] == [
        "redis.read_timeout",
        "redis.dial_timeout",
        "redis.max_retries",
        "redis.pool_size_multiplier",
        "redis.min_idle_conns",
    ]
    assert wrong("redis: {addr: 'rediss://h?tls_ca=/mine', tls: {check_hostname: false}}") == [
        "redis.addr: tls_ca would do nothing beside keys of redis.tls; write redis.tls.ca"
    ]
    assert redis(read, "addr: 'REDISS://h', tls: {ca: /mine}").tls is not None


def test_redis_username(read: Read, wrong: Wrong) -> None:
    assert redis(read, "username: ada").username == "ada"
    assert wrong("redis: {username: 5}")[0].startswith("redis.username: must be a text")


def test_redis_password(read: Read, wrong: Wrong) -> None:
    assert redis(read, "addr: 'redis://ada@h'", REDIS_PASSWORD="12").password == "12"
    assert wrong("redis: {password: 5}")[0].startswith("redis.password: must be a text")


def test_redis_db(read: Read, wrong: Wrong) -> None:
    assert (redis(read).db, redis(read, "db: 3").db) == (0, 3)
    assert wrong("redis: {db: one}")[0].startswith("redis.db: must be a whole number")


def test_redis_pool_size_multiplier_is_connections_for_each_cpu(read: Read, wrong: Wrong) -> None:
    assert redis(read).max_connections == 10 * CPUS
    assert redis(read, "pool_size_multiplier: 7").max_connections == 7 * CPUS
    assert wrong("redis: {pool_size_multiplier: 0}")[0].startswith(
        "redis.pool_size_multiplier: must be"
    )


def test_redis_min_idle_conns(read: Read, wrong: Wrong) -> None:
    assert (redis(read).min_idle, redis(read, "min_idle_conns: 0").min_idle) == (5, 0)
    assert wrong("redis: {min_idle_conns: 100000}")[0].startswith(
        "redis.min_idle_conns: must be at most"
    )


def test_redis_dial_timeout(read: Read, wrong: Wrong) -> None:
    assert redis(read).dial_timeout == timedelta(seconds=5)
    assert redis(read, "dial_timeout: 700ms").dial_timeout == timedelta(milliseconds=700)
    assert wrong("redis: {dial_timeout: 0s}")[0].startswith("redis.dial_timeout: must be longer")


def test_redis_read_timeout_and_write_timeout_are_one(read: Read, wrong: Wrong) -> None:
    assert redis(read).timeout == timedelta(seconds=3)
    assert redis(read, "read_timeout: 1s, write_timeout: 1000ms").timeout == timedelta(seconds=1)
    assert wrong("redis: {read_timeout: 30d, write_timeout: 30d}")[0].startswith(
        "redis.read_timeout: must be at most"
    )
    assert wrong("redis: {read_timeout: 1s}")[0].startswith(
        "redis.write_timeout: must be as redis.read_timeout"
    )


def test_redis_max_retries(read: Read, wrong: Wrong) -> None:
    assert (redis(read).max_retries, redis(read, "max_retries: 0").max_retries) == (3, 0)
    assert wrong("redis: {max_retries: -1}")[0].startswith("redis.max_retries: must be")


def test_redis_tls(read: Read, wrong: Wrong) -> None:
    assert redis(read).tls is None
    tls = redis(read, "tls: {enabled: true, ca: /ca, cert: /c, key: /k, check_hostname: false}").tls
    assert tls is not None
    assert (tls.ca, tls.cert, tls.key, tls.check_hostname) == ("/ca", "/c", "/k", False)
    assert (
        redis(read, "addr: 'rediss://h?tls_ca=/mine'").tls
        == redis(read, "tls: {enabled: true, ca: /mine}").tls
    )
    assert wrong("redis: {tls: {ca: /ca}}")[0].startswith("redis.tls.enabled: must be true")
    assert "cert and key belong together" in wrong("redis: {tls: {enabled: true, cert: /c}}")[0]


def test_redis_sentinel(read: Read, wrong: Wrong) -> None:
    found = redis(read, "addr: ['a', 'b:2'], sentinel: {master: main, username: s, password: t}")
    assert (found.master, found.sentinel_username, found.sentinel_password) == ("main", "s", "t")
    assert found.hosts == [("a", 26379), ("b", 2)]
    assert wrong("redis: {sentinel: {password: t}}")[0].startswith("redis.sentinel.master: ")


def test_worker_count_is_at_least_1(wrong: Wrong) -> None:
    assert wrong("worker: {count: 0}") == [
        "worker.count: must be a whole number from 1 to 10000, not 0 (from the file)"
    ]


def test_worker_priorities_are_not_empty(wrong: Wrong) -> None:
    assert wrong("worker: {priorities: [], queues: {}}") == [
        "worker.priorities: must not be empty, not [] (from the file)"
    ]


def test_worker_priorities_each_have_an_entry_in_worker_queues(wrong: Wrong) -> None:
    assert wrong("worker: {priorities: [high, mid, low]}") == [
        "worker.queues: has no list for 'mid', one of worker.priorities"
    ]
    assert "'low' is not among worker.priorities" in wrong("worker: {priorities: [high]}")[0]


@pytest.mark.parametrize(
    ("words", "spread"),
    [("a", "aaaaa"), ("ab", "aabbb"), ("abc", "aabcc"), ("abcd", "abbcd"), ("abcde", "abcde")],
)
def test_worker_priorities_are_spread_over_our_levels(read: Read, words: str, spread: str) -> None:
    queues = ", ".join(f"{word}: 'in:{word}'" for word in words)
    keys = rules.original_keys(
        read(f"worker: {{priorities: [{', '.join(words)}], queues: {{{queues}}}}}").values
    )
    assert "".join(keys.words) == spread
    assert keys.levels == tuple(f"in:{word}" for word in spread)
    assert (keys.prefix, keys.tagged) == ("in", False)


def test_worker_queues_of_the_environment_are_yaml_or_json(read: Read) -> None:
    for said in ('{"high": "a", "low": "b"}', "{high: a, low: b}"):
        assert read("", WORKER_QUEUES=said).values.worker.queues == {"high": "a", "low": "b"}


def test_worker_heartbeat_ttl_is_at_least_5s(read: Read, wrong: Wrong) -> None:
    assert read("worker: {heartbeat_ttl: 5s}").values.worker.heartbeat_ttl == timedelta(seconds=5)
    assert wrong("worker: {heartbeat_ttl: 4999ms}")[0].startswith(
        "worker.heartbeat_ttl: must be at least 5s"
    )


def test_worker_brpoplpush_timeout_is_at_most_half_of_heartbeat_ttl(
    read: Read, wrong: Wrong
) -> None:
    found = read("worker: {heartbeat_ttl: 5s, brpoplpush_timeout: 2500ms}").values.worker
    assert found.brpoplpush_timeout == found.heartbeat_ttl / 2
    assert wrong("worker: {heartbeat_ttl: 5s, brpoplpush_timeout: 2501ms}") == [
        "worker.brpoplpush_timeout: must be at most half of worker.heartbeat_ttl, 2s500ms"
    ]


def test_worker_brpoplpush_timeout_is_above_0_and_at_most_10s(wrong: Wrong) -> None:
    assert "must be longer than nothing" in wrong("worker: {brpoplpush_timeout: 0s}")[0]
    assert "must be at most 10s" in wrong("worker: {heartbeat_ttl: 1m, brpoplpush_timeout: 11s}")[0]


def test_worker_max_retries_is_one_less_than_attempts(read: Read, wrong: Wrong) -> None:
    assert rules.retry_policy(read().values).max_attempts == 4
    assert rules.retry_policy(read("worker: {max_retries: 0}").values).max_attempts == 1
    assert wrong("worker: {max_retries: -1}")[0].startswith("worker.max_retries: must be")


def test_worker_backoff_is_min_of_base_times_2_to_the_n_minus_1_and_max(
    read: Read, wrong: Wrong
) -> None:
    policy = rules.retry_policy(read("worker: {backoff: {base: 500ms, max: 3s}}").values)
    waits = [policy.delay(attempt, rng=None).total_seconds() for attempt in (1, 2, 3, 4, 5)]  # type: ignore[arg-type]
    assert waits == [0.5, 1, 2, 3, 3]
    assert wrong("worker: {backoff: {base: 11s}}")[0].startswith(
        "worker.backoff.base: must be at most"
    )


@pytest.mark.parametrize("key", ["processing_list_pattern", "heartbeat_key_pattern"])
@pytest.mark.parametrize("pattern", ["jobs", "jobs:%s:%s", "jobs:%d", "100%:%s", "jobs:%%s", "5"])
def test_worker_patterns_are_printf_formats_with_one_s(
    wrong: Wrong, key: str, pattern: str
) -> None:
    assert wrong(f"worker: {{{key}: '{pattern}'}}")[0].startswith(
        f"worker.{key}: must have exactly one %s"
    )


def test_worker_processing_list_pattern_fits_no_other_key(wrong: Wrong) -> None:
    assert wrong("worker: {processing_list_pattern: 'jobqueue:%s'}")[0].startswith(
        "worker.processing_list_pattern: must not fit worker.queues.high"
    )


def test_worker_completed_list_and_dead_letter_list_are_two(wrong: Wrong) -> None:
    assert wrong("worker: {dead_letter_list: 'jobqueue:completed'}") == [
        "worker.dead_letter_list: must not be the same as worker.completed_list"
    ]


@pytest.mark.parametrize(
    "key", ["worker.completed_list", "worker.dead_letter_list", "producer.rate_limit_key"]
)
def test_no_key_of_redis_may_be_two_things(wrong: Wrong, key: str) -> None:
    section, _, name = key.partition(".")
    for own in ("origins", "origins:before", "marker", "jobs"):
        [line] = wrong(f"{section}: {{{name}: 'jobqueue:{own}'}}")
        assert line == f"{key}: must not be jobqueue:{own}, which the queue keeps for itself"


def test_worker_fetch_is_strict_or_weighted(read: Read, wrong: Wrong) -> None:
    assert (read().values.worker.fetch, read("worker: {fetch: weighted}").values.worker.fetch) == (
        "strict",
        "weighted",
    )
    assert wrong("worker: {fetch: fair}")[0].startswith(
        "worker.fetch: must be one of strict, weighted"
    )


def test_reaper_interval_base_delay_and_scan_count(read: Read, wrong: Wrong) -> None:
    rule = rules.reaper_rule(read("reaper: {interval: 1s, base_delay: 20ms, scan_count: 7}").values)
    assert (rule.interval, rule.base_delay, rule.scan_count) == (
        timedelta(seconds=1),
        timedelta(milliseconds=20),
        7,
    )
    assert rules.reaper_rule(read().values).scan_count == 100
    lines = wrong("reaper: {interval: 0s, base_delay: 5, scan_count: 0}")
    assert [line.partition(":")[0] for line in lines] == [
        "reaper.interval",
        "reaper.base_delay",
        "reaper.scan_count",
    ]


def test_producer_keys_are_the_rule_of_the_producer(read: Read) -> None:
    text = """
    producer:
      scan_dir: /in
      include_globs: ['*.a']
      exclude_globs: ['*.b']
      default_priority: high
      high_priority_exts: [.c]
      rate_limit_per_sec: 0
      rate_limit_key: limit
    """
    rule = rules.producer_rule(read(text).values)
    assert (rule.scan_dir, rule.include_globs, rule.exclude_globs) == ("/in", ("*.a",), ("*.b",))
    assert (rule.default_priority, rule.high_priority_exts) == ("high", (".c",))
    assert (rule.rate_limit_per_sec, rule.rate_limit_key) == (0, "limit")


def test_producer_rate_limit_per_sec_is_0_or_more(wrong: Wrong) -> None:
    assert wrong("producer: {rate_limit_per_sec: -1}") == [
        "producer.rate_limit_per_sec: must be a whole number from 0 on, not -1 (from the file)"
    ]


def test_producer_globs_and_exts_are_checked(wrong: Wrong) -> None:
    assert wrong("producer: {include_globs: ['[a'], high_priority_exts: ['a/b']}")[0].startswith(
        "producer."
    )


def test_circuit_breaker_keys_are_the_rule_of_the_breaker(read: Read, wrong: Wrong) -> None:
    rule = rules.breaker_rule(read().values)
    assert (rule.failure_threshold, rule.min_samples) == (0.5, 20)
    assert (rule.window, rule.cooldown_period) == (timedelta(minutes=1), timedelta(seconds=30))
    said = (
        "circuit_breaker: {failure_threshold: 1, window: 10s, cooldown_period: 1s, min_samples: 3}"
    )
    rule = rules.breaker_rule(read(said).values)
    assert (rule.failure_threshold, rule.min_samples) == (1.0, 3)
    assert (rule.window, rule.cooldown_period) == (timedelta(seconds=10), timedelta(seconds=1))
    lines = wrong(
        "circuit_breaker: {failure_threshold: 1.5, window: x, cooldown_period: 3, min_samples: 0}"
    )
    names = ["failure_threshold", "window", "cooldown_period", "min_samples"]
    assert [line.partition(":")[0] for line in lines] == [
        f"circuit_breaker.{name}" for name in names
    ]


def test_observability_metrics_port_is_1_to_65535(read: Read, wrong: Wrong) -> None:
    assert read("observability: {metrics_port: 65535}").values.observability.metrics_port == 65535
    for port in ("0", "65536"):
        assert wrong(f"observability: {{metrics_port: {port}}}")[0].startswith(
            "observability.metrics_port: must be"
        )


def test_observability_host_is_loopback_unless_set(read: Read, wrong: Wrong) -> None:
    assert read().values.observability.host == "127.0.0.1"
    found = read("observability: {host: 0.0.0.0}")
    assert found.values.observability.host == "0.0.0.0"
    assert wrong("observability: {host: 5}")[0].startswith("observability.host: must be a text")


def test_observability_log_level_is_a_level(wrong: Wrong) -> None:
    assert wrong("observability: {log_level: loud}")[0].startswith(
        "observability.log_level: must be one of debug"
    )


def test_observability_queue_sample_interval_is_a_duration(wrong: Wrong) -> None:
    assert wrong("observability: {queue_sample_interval: 2}")[0].startswith(
        "observability.queue_sample_interval: must"
    )


def test_observability_tracing_is_checked(read: Read, wrong: Wrong) -> None:
    assert read(
        "observability: {tracing: {enabled: true, endpoint: 'http://h:4317'}}"
    ).values.observability.tracing.enabled
    lines = wrong("observability: {tracing: {enabled: 1, endpoint: 2}}")
    assert [line.partition(":")[0] for line in lines] == [
        "observability.tracing.enabled",
        "observability.tracing.endpoint",
    ]


def test_scheduler_keys_are_the_arguments_of_scheduler(read: Read, wrong: Wrong) -> None:
    text = """
    scheduler: {schema: mine, tenants: [acme], sync_every: 2s, lease: 5s, max_workers: 3, label: web, app: shop,
      version: 7, migrate: false, prepare: false, max_payload: 10, retention: null,
      callback_secret: 0123456789abcdef, callback_private: true}
    redis: {addr: null}
    queues: {mail: {dialect: reliable}}
    """
    assert rules.scheduler_options(read(text).values) == {
        "redis": None,
        "queues": {"mail": {"dialect": "reliable"}},
        "schema": "mine",
        "tenants": ["acme"],
        "sync_every": timedelta(seconds=2),
        "lease": timedelta(seconds=5),
        "max_workers": 3,
        "label": "web",
        "app": "shop",
        "version": 7,
        "migrate": False,
        "listen": None,
        "prepare": False,
        "max_payload": 10,
        "retention": None,
        "callback_secret": "0123456789abcdef",
        "callback_private": True,
        "reaper": ReaperRule(),
    }
    lines = wrong(
        "scheduler: {lease: 2h, max_workers: 0, tenants: 5}\nqueues: {mail: {dialect: kafka}}"
    )
    assert {line.partition(":")[0] for line in lines} == {
        "scheduler.lease",
        "scheduler.max_workers",
        "scheduler.tenants",
        "queues",
    }


def test_scheduler_app_and_version_of_the_environment(read: Read, wrong: Wrong) -> None:
    assert read("").values.scheduler.app is None
    assert read("").values.scheduler.version is None
    found = read("", SCHEDULER_APP="shop", SCHEDULER_VERSION="7").values.scheduler
    assert (found.app, found.version) == ("shop", 7)
    assert wrong("scheduler: {app: ''}")[0].startswith("scheduler.app: must have 1 to 200")
    for text in ("'7'", "-1", "7.5", "true"):
        assert wrong(f"scheduler: {{version: {text}}}")[0].startswith(
            "scheduler.version: must be a whole number from 0 to 9223372036854775807, not "
        )


@pytest.mark.parametrize("key", ["database", "listen"])
@pytest.mark.parametrize(
    "dsn",
    ["trout77", "host=h password=a trout77", "mysql://h/app", "postgresql://ada:a@trout77@h/app"],
)
def test_scheduler_database_and_listen_are_dsns(wrong: Wrong, key: str, dsn: str) -> None:
    [line] = wrong(f"scheduler: {{{key}: '{dsn}'}}")
    assert line.startswith(f"scheduler.{key}: ")
    assert "postgresql://" in line
    assert "trout77" not in line


def test_scheduler_keys_of_the_environment(read: Read) -> None:
    found = read(
        "scheduler: {database: 'postgresql://file'}",
        DATABASE_URL="postgresql://other",
        SCHEDULER_DATABASE_URL="postgresql://own",
        SCHEDULER_TENANTS="acme, globex",
        SCHEDULER_MAX_WORKERS="3",
        SCHEDULER_MIGRATE="off",
        SCHEDULER_RETENTION="none",
        SCHEDULER_LISTEN="false",
        SCHEDULER_QUEUES='{"mail": {"dialect": "reliable"}}',
    ).values
    own = found.scheduler
    assert (own.database, own.tenants, own.max_workers) == (
        "postgresql://own",
        ["acme", "globex"],
        3,
    )
    assert (own.migrate, own.retention, own.listen) == (False, None, False)
    assert found.queues == {"mail": {"dialect": "reliable"}}


@pytest.mark.parametrize("key", ["lease", "sync_every", "retention"])
def test_a_duration_of_the_scheduler_without_a_unit_is_told_what_to_write(
    wrong: Wrong, key: str
) -> None:
    assert wrong(f"scheduler: {{{key}: 30}}") == [
        f'scheduler.{key}: must have a unit, like "30s" or "30ms", not 30 (from the file)'
    ]
    assert wrong(f"scheduler: {{{key}: [30s]}}")[0].startswith(
        f'scheduler.{key}: must be a text like "30s" or "15m", not'
    )
