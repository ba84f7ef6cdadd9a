"""Names of environment variables: which set a key, which are ignored, which are misspelt."""

import pytest

from scheduler.cli import rules
from scheduler.cli.configuration import UNPREFIXED_KEYS, keys
from tests.config.conftest import Read, Wrong
from tests.support.kubernetes import service_variables

SERVICES = ("web", "worker", "redis", "scheduler", "producer", "observability", "queues")


def test_every_key_has_a_prefixed_variable_of_its_own() -> None:
    prefixed = [key.prefixed for key in keys()]
    assert all(name.startswith("SCHEDULER_") for name in prefixed)
    variables = [name for key in keys() for name in key.variables]
    assert len(set(variables)) == len(variables)


def test_only_keys_of_the_specification_have_unprefixed_variables() -> None:
    well_known = {"DATABASE_URL", "REDIS_URL"}
    for key in keys():
        unprefixed = {name for name in key.variables if not name.startswith("SCHEDULER_")}
        own = key.name.upper().replace(".", "_")
        assert unprefixed - well_known == ({own} if key.name in UNPREFIXED_KEYS else set())
    assert {key.name for key in keys()} >= UNPREFIXED_KEYS


def test_prefixed_variable_wins_over_unprefixed(read: Read) -> None:
    found = read("worker: {count: 3}", WORKER_COUNT="4", SCHEDULER_WORKER_COUNT="5")
    assert found.values.worker.count == 5
    assert found.origins["worker.count"] == "SCHEDULER_WORKER_COUNT"
    assert read("worker: {count: 3}", WORKER_COUNT="4").values.worker.count == 4


@pytest.mark.parametrize(
    "variable", ["WEB_PORT", "WORKER_PROCESSES", "QUEUES", "REDIS_TLS_ENABLED"]
)
def test_unprefixed_variable_of_another_key_is_ignored_with_a_warning(
    read: Read, variable: str
) -> None:
    found = read(**{variable: "nonsense"})
    assert found.values == read().values
    assert any(f"SCHEDULER_{variable}" in warning for warning in found.warnings)


@pytest.mark.parametrize("service", [*SERVICES, "scheduler-web", "observability-metrics"])
def test_kubernetes_service_variables_change_no_value(read: Read, service: str) -> None:
    assert read(**service_variables(service)).values == read().values


@pytest.mark.parametrize(
    ("service", "variable"),
    [
        ("scheduler-web", "SCHEDULER_WEB_PORT"),
        ("observability-metrics", "OBSERVABILITY_METRICS_PORT"),
        ("scheduler-observability-metrics", "SCHEDULER_OBSERVABILITY_METRICS_PORT"),
    ],
)
def test_service_address_for_a_port_is_ignored_with_a_warning(
    read: Read, service: str, variable: str
) -> None:
    text = "web: {port: 81}\nobservability: {metrics_port: 82}"
    found = read(text, **service_variables(service))
    assert (found.values.web.port, found.values.observability.metrics_port) == (81, 82)
    [warning] = found.warnings
    assert warning.startswith(f"{variable}=tcp://")


def test_service_address_falls_back_to_the_next_variable(read: Read) -> None:
    found = read(
        SCHEDULER_OBSERVABILITY_METRICS_PORT="tcp://10.0.0.7:80", OBSERVABILITY_METRICS_PORT="99"
    )
    assert found.values.observability.metrics_port == 99


@pytest.mark.parametrize(
    "variable", ["WORKER_CUONT", "REDIS_TLS", "WORKER_BACKOFF", "WEB_CONCURRENCY", "REDIS_HOST"]
)
def test_foreign_variable_that_shares_a_prefix_is_no_error(read: Read, variable: str) -> None:
    assert read(**{variable: "{a: 1"}).values == read().values


def test_unrelated_variable_with_the_prefix_is_a_warning(read: Read) -> None:
    assert read(SCHEDULER_IMAGE="registry/scheduler:1").warnings == (
        "SCHEDULER_IMAGE is not a setting and is ignored",
    )
    assert read(SCHEDULER_HOME="/data", SCHEDULER_TEST_DATABASE_URL="x").warnings == ()


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("SCHEDULER_WORKER_CUONT", "did you mean SCHEDULER_WORKER_COUNT?"),
        ("SCHEDULER_LEESE", "did you mean SCHEDULER_LEASE?"),
        ("SCHEDULER_WEBB_PORT", "did you mean SCHEDULER_WEB_PORT?"),
        ("SCHEDULER_REAPER_EVERY_NOW_AND_THEN", "SCHEDULER_REAPER_INTERVAL"),
        ("SCHEDULER_WORKER_BACKOFF", "set SCHEDULER_WORKER_BACKOFF_BASE"),
        ("SCHEDULER_WEB", "set SCHEDULER_WEB_HOST"),
    ],
)
def test_misspelt_prefixed_variable_is_an_error_with_a_hint(
    wrong: Wrong, variable: str, hint: str
) -> None:
    [line] = wrong(**{variable: "5"})
    assert line.startswith(f"{variable}: ")
    assert hint in line


def test_redis_url_sets_address_user_password_db_and_tls(read: Read) -> None:
    found = rules.redis_options(read(REDIS_URL="rediss://ada:p%40w@h:7/3").values)
    assert found is not None
    assert (found.addresses, found.username, found.password) == (("h:7",), "ada", "p@w")
    assert (found.db, found.tls is not None) == (3, True)


def test_redis_url_wins_over_the_file_and_yields_to_redis_addr(read: Read) -> None:
    text = "redis: {addr: 'file:1'}"
    assert read(text, REDIS_URL="redis://url:2").values.redis.addr == "redis://url:2"
    for name in ("REDIS_ADDR", "SCHEDULER_REDIS_ADDR"):
        found = read(text, **{"REDIS_URL": "redis://url:2", name: "addr:3"})
        assert found.values.redis.addr == ("addr:3",)
        assert found.origins["redis.addr"] == name


@pytest.mark.parametrize(
    ("key", "text", "url"),
    [
        ("redis.username", "username: eve", "redis://ada:pw@h"),
        ("redis.password", "password: trout77", "redis://ada:trout78@h"),
        ("redis.db", "db: 4", "redis://h/3"),
        ("redis.tls.enabled", "tls: {enabled: false}", "rediss://h"),
    ],
)
def test_redis_url_that_contradicts_a_key_is_an_error(
    wrong: Wrong, key: str, text: str, url: str
) -> None:
    [line] = wrong(f"redis: {{{text}}}", REDIS_URL=url)
    assert line.startswith(f"{key}: ")
    assert "REDIS_URL" in line
    assert "trout" not in line


def test_redis_keys_add_to_a_redis_url(read: Read) -> None:
    found = rules.redis_options(
        read("redis: {password: pw, db: 2}", REDIS_URL="redis://ada@h").values
    )
    assert found is not None
    assert (found.username, found.password, found.db) == ("ada", "pw", 2)


def test_redis_url_that_cannot_be_read_is_named(wrong: Wrong) -> None:
    [line] = wrong(REDIS_URL="http://ada:trout77@h")
    assert "REDIS_URL" in line
    assert "trout77" not in line
