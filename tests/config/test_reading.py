"""How a configuration is read: file, environment, what is wrong; and the page that tells of it."""

import json
import os
import re
from datetime import timedelta
from pathlib import Path

import pytest

from scheduler import ConfigError
from scheduler.cli.configuration import effective, keys
from scheduler.cli.options import Configuration
from tests.config.conftest import Read, Wrong

PAGE = Path(__file__).parents[2] / "docs/running.md"


def test_a_missing_file_is_allowed(tmp_path: Path) -> None:
    assert effective(tmp_path / "none.yaml", {}).values == Configuration()


def test_an_empty_file_and_empty_sections_are_the_defaults(read: Read) -> None:
    assert read("").values == Configuration()
    assert read("worker:\nredis:\n  tls:\n").values == Configuration()


def test_environment_wins_over_the_file_and_the_file_over_the_default(read: Read) -> None:
    found = read("worker: {count: 3, processes: 2}", WORKER_COUNT="5")
    assert (
        found.values.worker.count,
        found.values.worker.processes,
        found.values.worker.max_retries,
    ) == (5, 2, 3)
    origins = found.origins
    assert [origins[f"worker.{key}"] for key in ("count", "processes", "max_retries")] == [
        "WORKER_COUNT",
        "file",
        "default",
    ]


def test_env_overrides_use_upper_snake_case(read: Read) -> None:
    found = read(
        "", WORKER_BACKOFF_BASE="250ms", OBSERVABILITY_TRACING_ENABLED="yes", REDIS_ADDR="a:1,b:2"
    ).values
    assert found.worker.backoff.base == timedelta(milliseconds=250)
    assert found.observability.tracing.enabled is True
    assert found.redis.addr == ("a:1", "b:2")


def test_an_empty_environment_variable_says_nothing(read: Read) -> None:
    assert read("worker: {count: 3}", WORKER_COUNT="").origins["worker.count"] == "file"


@pytest.mark.parametrize("said", ["**/*.txt, *.md", "['**/*.txt', '*.md']", '["**/*.txt","*.md"]'])
def test_lists_of_the_environment_stand_between_commas_or_in_brackets(
    read: Read, said: str
) -> None:
    assert read("", PRODUCER_INCLUDE_GLOBS=said).values.producer.include_globs == (
        "**/*.txt",
        "*.md",
    )


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("500ms", 0.5), ("1m30s", 90), ("1.5s", 1.5), ("1h0m0s", 3600), ("2 days", 172_800)],
)
def test_durations_are_written_with_units(read: Read, said: str, seconds: float) -> None:
    found = read(f"scheduler: {{grace: {said}}}").values.scheduler.grace
    assert found == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("30", 'like "30s"'),
        ("soon", 'write "500ms"'),
        ("0s", "longer than nothing"),
        ("true", "not bool"),
    ],
)
def test_durations_without_sense_are_refused(wrong: Wrong, said: str, cure: str) -> None:
    [line] = wrong(f"worker: {{grace: {said}}}")
    assert line.startswith("worker.grace: ")
    assert cure in line


def test_all_errors_are_said_at_once_each_with_its_key(wrong: Wrong) -> None:
    lines = wrong(
        """
        worker: {count: 0, heartbeat_ttl: 3s, cuont: 4, backoff: {base: 11s}}
        redis: {db: -1}
        nonsense: 1
        producer: 7
        """,
        OBSERVABILITY_METRICS_PORT="70000",
    )
    assert lines == [
        "nonsense: there is no such key; there are scheduler, redis, queues, worker, reaper, producer,"
        " circuit_breaker, observability, web",
        "redis.db: must be a whole number from 0 on, not -1 (from the file)",
        "worker.cuont: there is no such key; did you mean worker.count?",
        "worker.count: must be a whole number from 1 to 10000, not 0 (from the file)",
        "worker.heartbeat_ttl: must be at least 5s, not '3s' (from the file)",
        "producer: must be a section with keys, not a value of the kind int",
        "observability.metrics_port: must be a whole number from 1 to 65535, not 70000 (from"
        " OBSERVABILITY_METRICS_PORT)",
        "worker.backoff.base: must be at most worker.backoff.max, 10s",
    ]


def test_an_unknown_key_hides_nothing_else_that_is_wrong(wrong: Wrong) -> None:
    lines = wrong("e: 1\nworker: {backoff: {base: 11s}}")
    assert [line.partition(":")[0] for line in lines] == ["e", "worker.backoff.base"]


def test_all_keys_that_come_twice_are_said_with_what_else_is_wrong(wrong: Wrong) -> None:
    lines = wrong("worker:\n  count: 0\n  count: 0\nredis: {db: 1, db: 2}\nworker: {count: 0}\n")
    assert [line.partition(", ")[2] for line in lines[:3]] == [
        "line 3: count is there twice",
        "line 4: db is there twice",
        "line 5: worker is there twice",
    ]
    assert [line.partition(":")[0] for line in lines[3:]] == ["worker.count"]


def test_each_line_is_one_line_whatever_a_key_is_called(wrong: Wrong) -> None:
    assert wrong('"a\\nb": 1')[0].startswith("a\\nb: there is no such key")


def test_every_variable_takes_what_its_key_is_shown_as(read: Read) -> None:
    for key, value, _ in read().rows():
        said = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
        if said:
            found = read("", **{key.variables[0]: said})
            assert found.values == Configuration(), key.name
            assert found.origins[key.name] == key.variables[0]


def test_none_takes_a_value_away(read: Read) -> None:
    text = "redis: {username: ada, password: pw, tls: {enabled: true, ca: /ca}}\nscheduler: {label: web}"
    none = dict.fromkeys(
        ("REDIS_USERNAME", "REDIS_PASSWORD", "SCHEDULER_REDIS_TLS_CA", "SCHEDULER_LABEL"), "none"
    )
    found = read(text, **none).values
    assert (
        found.redis.username,
        found.redis.password,
        found.redis.tls.ca,
        found.scheduler.label,
    ) == (None,) * 4


def test_a_key_without_a_value_is_refused(wrong: Wrong) -> None:
    assert wrong("worker:\n  count:\n") == [
        "worker.count: must be a whole number from 1 to 10000, not nothing (from the file)"
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("worker: {count: 1", "line 1: is not YAML"),
        ("worker:\n  count: 1\n  count: 2\n", "line 3: count is there twice"),
        ("a: 1\n\tb: 2", "line 2: is not YAML"),
        ("- worker", "the file: must be a section"),
        ("worker: &x {count: *x}", "worker.count: must be a whole number"),
        ("worker: !!python/object:os.system {}", "is not YAML"),
        pytest.param("worker: " + "[" * 3000 + "]" * 3000, "is not YAML", id="deep"),
        pytest.param(
            "worker: {count: " + "9" * 5000 + "}", "has a value that cannot be read", id="long"
        ),
        ("worker: {grace: 2001-13-45}", "has a value that cannot be read"),
        ("worker: {count: !!int ''}", "has a value that cannot be read"),
        pytest.param(
            "worker: {count: 0x" + "f" * 4000 + "}", "worker.count: must be", id="hexadecimal"
        ),
        pytest.param(
            "circuit_breaker: {min_samples: 0x" + "f" * 4000 + "}",
            "min_samples: must be",
            id="large",
        ),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(wrong: Wrong, text: str, says: str) -> None:
    assert says in wrong(text)[0]


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        effective(tmp_path, {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not YAML"):
        effective(tmp_path / "binary", {})


def test_no_message_quotes_a_secret(wrong: Wrong) -> None:
    lines = wrong(
        """
        redis: {password: 770077, addr: ["redis://ada:trout77@h", b]}
        scheduler: {callback_secret: trout77, database: 770077}
        """,
        SCHEDULER_REDIS_SENTINEL_PASSWORD="[trout77",
    )
    assert {line.partition(":")[0] for line in lines} >= {
        "redis.password",
        "redis.addr",
        "scheduler.callback_secret",
    }
    lines += wrong("redis: redis://ada:trout77@h\nscheduler: {database: {password: trout77}}")
    for text in ("*trout77", "!trout77 x", "!trout77!a b", "&trout77 a, username: &trout77 b"):
        lines += wrong(f"redis: {{password: {text}, db: x }}")
    text = "".join(lines)
    assert "trout" not in text
    assert "7700" not in text


@pytest.mark.parametrize(
    "key", ["producer.scan_dir", "redis.username", "worker.completed_list", "scheduler.database"]
)
@pytest.mark.parametrize("said", ["/in/\udcff", "/in/\0"])
def test_a_text_that_nobody_could_be_sent_is_refused(wrong: Wrong, key: str, said: str) -> None:
    assert wrong("", **{key.upper().replace(".", "_"): said})[0].startswith(
        f"{key}: must be a text in UTF-8"
    )


def test_each_key_is_on_the_page_with_its_default_and_variable() -> None:
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    assert list(rows) == [key.name for key in keys()]
    for key, value, _ in effective(Path(os.devnull), {}).rows():
        default, variables, effect = rows[key.name].split(" | ", 2)
        assert default.strip("`") == _on_the_page(value), key.name
        assert variables == ", ".join(f"`{each}`" for each in key.variables)
        assert len(effect) > 5


def _on_the_page(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(value)
    return str(value or (0 if value == 0 else "none")).replace("'", "")
