"""The names of keys, to the letter."""

from typing import Any

import pytest

from scheduler.config import checked_queues
from scheduler.dialects.conveyor.keys import Keys
from scheduler.errors import ConfigError

UUID = "0b2f7a4e-5c1d-4d3a-9a53-0f8c2f1e6d77"


def named(keys: Keys) -> list[str]:
    inner = [keys.job(UUID, what) for what in ("", "children", "active", "onComplete")]
    return [keys.queue("mail"), keys.scheduled, *inner, keys.failed, keys.worker("w"), keys.events]


def test_names_of_the_specification() -> None:
    assert named(Keys()) == [
        "mail",
        "scheduled",
        f"jobs:{UUID}",
        f"jobs:{UUID}:children",
        f"jobs:{UUID}:active",
        f"jobs:{UUID}:onComplete",
        "failed",
        "worker:active:w",
        "events",
    ]


def test_names_of_the_go_project() -> None:
    assert named(Keys("upstream")) == [
        "conv:queue:mail",
        "conv:scheduled",
        f"conv:job:{UUID}",
        f"conv:job:{UUID}:children",
        f"conv:job:{UUID}:active",
        f"conv:job:{UUID}:onComplete",
        "conv:failed",
        "conv:worker:active:w",
        "conv:events",
    ]


@pytest.mark.parametrize(("names", "queue"), [("seed", "{x}:mail"), ("upstream", "{x}:queue:mail")])
def test_a_namespace_is_before_everything(names: str, queue: str) -> None:
    keys = Keys(names, "{x}")
    assert keys.queue("mail") == queue
    assert {name.partition(":")[0] for name in named(keys)} == {"{x}"}


@pytest.mark.parametrize(
    "name",
    [
        "scheduled",
        "failed",
        "events",
        "jobs:x",
        "jobs:active",
        "ring:mail:jobs",
        "worker:active:w",
        "workers:active",
        "queues:active",
    ],
)
def test_a_queue_that_would_be_something_else_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="choose another name"):
        Keys().queue(name)
    assert Keys("upstream").queue(name) == f"conv:queue:{name}"


@pytest.mark.parametrize("name", ["jobs", "job:x", "scheduled2", "videos.Encode", "a:b"])
def test_other_names_are_not(name: str) -> None:
    assert Keys().queue(name) == name


@pytest.mark.parametrize(
    ("namespace", "tagged"),
    [
        (None, False),
        ("conv", False),
        ("{conv}", True),
        ("{}", False),
        ("a{b}c", True),
        ("{a", False),
    ],
)
def test_what_is_a_hash_tag(namespace: str | None, tagged: bool) -> None:
    assert Keys("seed", namespace).tagged is tagged


def test_there_are_two_presets() -> None:
    with pytest.raises(ConfigError, match="keys: must be one of seed, upstream, not 'go'"):
        Keys("go")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, {}),
        ({"keys": "upstream"}, {"keys": "upstream"}),
        ({"namespace": "{a}"}, {"namespace": "{a}"}),
    ],
)
def test_a_queue_of_the_configuration(options: dict[str, str], wanted: dict[str, Any]) -> None:
    assert checked_queues({"mail": {"dialect": "conveyor", **options}}) == {
        "mail": {"dialect": "conveyor", **wanted}
    }


@pytest.mark.parametrize("options", [{"keys": "go"}, {"namespace": ""}, {"prefix": "x"}])
def test_what_a_queue_cannot_be_told(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="queues: "):
        checked_queues({"mail": {"dialect": "conveyor", **options}})
