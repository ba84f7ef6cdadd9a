"""URLs of Redis, read and refused; no message shows a password."""

from datetime import timedelta
from typing import Any

import pytest

from scheduler.errors import ConfigError
from scheduler.model.addresses import RedisOptions, Tls


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://", {"addresses": ("localhost",)}),
        ("redis://h", {"addresses": ("h",)}),
        (
            "REDIS://u:p%40w%2F@h:1/3",
            {"addresses": ("h:1",), "username": "u", "password": "p@w/", "db": 3},
        ),
        ("redis://:a:b@h", {"addresses": ("h",), "password": "a:b"}),
        ("redis://u:p@w@h", {"addresses": ("h",), "username": "u", "password": "p@w"}),
        ("redis://h1:1,[::1]:2,h3", {"addresses": ("h1:1", "[::1]:2", "h3")}),
        (
            "redis://h?db=2&timeout=3s&dial_timeout=1m&max_retries=4&max_connections=9&min_idle=2",
            {
                "addresses": ("h",),
                "db": 2,
                "timeout": timedelta(seconds=3),
                "dial_timeout": timedelta(minutes=1),
                "max_retries": 4,
                "max_connections": 9,
                "min_idle": 2,
            },
        ),
        ("unix:///run/redis.sock?db=1", {"addresses": ("/run/redis.sock",), "db": 1}),
        (
            "unix://u:p@/run/redis.sock",
            {"addresses": ("/run/redis.sock",), "username": "u", "password": "p"},
        ),
        ("rediss://h", {"addresses": ("h",), "tls": Tls()}),
        (
            "rediss://h?tls_ca=/ca&tls_cert=/c&tls_key=/k&tls_check_hostname=false",
            {"addresses": ("h",), "tls": Tls(ca="/ca", cert="/c", key="/k", check_hostname=False)},
        ),
        (
            "redis+sentinel://u:p@a:1,b/main/4?sentinel_username=s&sentinel_password=t",
            {
                "addresses": ("a:1", "b"),
                "username": "u",
                "password": "p",
                "master": "main",
                "db": 4,
                "sentinel_username": "s",
                "sentinel_password": "t",
            },
        ),
        ("rediss+sentinel://a/main", {"addresses": ("a",), "master": "main", "tls": Tls()}),
    ],
)
def test_a_url_is_read(url: str, options: dict[str, Any]) -> None:
    assert RedisOptions.of(url) == RedisOptions(**options)


def test_a_host_without_a_port_has_the_usual_one() -> None:
    assert RedisOptions.of("redis://h,[::1]:7").hosts == [("h", 6379), ("::1", 7)]
    assert RedisOptions.of("redis+sentinel://h/main").hosts == [("h", 26379)]


def test_options_besides_the_url_win() -> None:
    assert RedisOptions.of("redis://u:p@h/1", db=2, timeout="1s") == RedisOptions(
        addresses=["h"], username="u", password="p", db=2, timeout=timedelta(seconds=1)
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "begins with redis://"),
        ("http://u:sesame@h", "begins with redis://"),
        ("redis://:ses/ame@h", "%2F"),
        ("redis://:ses?ame@h", "%3F"),
        ("redis://:ses#ame@h", "%23"),
        ("redis://:sesame@h:port", "address 1"),
        ("redis://:sesame", "address 1"),
        ("redis://:sesame@a,b:99999", "address 2"),
        ("redis://:sesame@a,,b", "address 2"),
        ("redis://[::1", "address 1"),
        ("redis://:sesame@h/x", "redis.db"),
        ("redis://:sesame@h?db=-1", "redis.db"),
        ("redis://:sesame@h?timout=1s", "no option 'timout'"),
        ("redis://:sesame@h?timeout=1", "redis.timeout: "),
        ("redis://:sesame@h?timeout=0s", "redis.timeout: "),
        ("redis://:sesame@h?max_connections=0", "redis.max_connections"),
        ("redis://:sesame@h?max_connections=2&min_idle=3", "redis.min_idle"),
        ("redis://:sesame@h?tls_ca=/x", "rediss://"),
        ("redis://h?sentinel_password=sesame", "`master`"),
        ("rediss://h?tls_check_hostname=no", "tls_check_hostname"),
        ("rediss://h?tls_cert=/x", "cert and key"),
        ("redis+sentinel://:sesame@h", "mymaster"),
        ("redis+sentinel://:sesame@h/main/x", "redis.db"),
        ("unix://:sesame@host/run/x", "unix:///run"),
        ("unix://", "unix:///run"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_without_its_password(url: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RedisOptions.of(url)
    assert said in str(caught.value)
    assert "ses" not in str(caught.value).replace("addresses", "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"addresses": "h:1"}, "redis.addresses"),
        ({"addresses": []}, "redis.addresses"),
        ({"addresses": ["/run/a", "h"]}, "Unix socket"),
        ({"addresses": ["/run/a"], "tls": Tls()}, "Unix socket"),
        ({"db": True}, "redis.db"),
        ({"password": ""}, "redis.password"),
        ({"max_retries": 1000}, "redis.max_retries"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RedisOptions(**options)


def test_a_password_is_not_shown() -> None:
    options = RedisOptions.of("redis+sentinel://u:sesame@h/main?sentinel_password=open")
    assert "sesame" not in repr(options)
    assert "open" not in repr(options)


def test_no_url_at_all() -> None:
    with pytest.raises(ConfigError, match="redis: must be a URL"):
        RedisOptions.of(6379)
