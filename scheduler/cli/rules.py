"""What the keys of a configuration must be to each other, and what they become: the options of the
parts.
"""

import os
import re
from collections.abc import Callable, Iterator
from urllib.parse import parse_qsl

from scheduler.cli.options import Configuration
from scheduler.config import SchedulerOptions
from scheduler.dialects.reliable.keys import OWN, Keys
from scheduler.errors import ConfigError
from scheduler.model.addresses import RedisOptions, Tls
from scheduler.model.breaker import BreakerRule
from scheduler.model.durations import brief
from scheduler.model.files import ProducerRule
from scheduler.model.reaper import ReaperRule
from scheduler.model.retries import RetryPolicy
from scheduler.web.access import Token, loopback

OF_KEYS = {  # options of a URL that keys of the section say, and their defaults
    "timeout": "read_timeout",
    "dial_timeout": "dial_timeout",
    "max_retries": "max_retries",
    "max_connections": "pool_size_multiplier",
    "min_idle": "min_idle_conns",
}


def broken(config: Configuration) -> list[str]:
    """Say which rules do not hold."""
    redis = [*_redis_rules(config)] or [*_redis_refused(config)]
    return [*redis, *_worker_rules(config), *_refused(producer_rule, config), *_web_rules(config)]


def _refused(part: Callable[[Configuration], object], config: Configuration) -> list[str]:
    try:
        part(config)
    except ConfigError as error:
        return str(error).splitlines()
    return []


def _redis_refused(config: Configuration) -> Iterator[str]:
    for line in _refused(redis_options, config):
        yield re.sub(
            "^redis:", "redis.sentinel.master:" if "`master`" in line else "redis.addr:", line
        )


def redis_options(config: Configuration) -> RedisOptions | None:
    """Say how Redis is reached; None: there is none."""
    redis = config.redis
    if redis.addr is None:
        return None
    options = {
        "username": redis.username,
        "password": redis.password,
        "db": redis.db or None,
        "master": redis.sentinel.master,
        "sentinel_username": redis.sentinel.username,
        "sentinel_password": redis.sentinel.password,
        "max_connections": _connections(config),
        "min_idle": redis.min_idle_conns,
        "dial_timeout": redis.dial_timeout,
        "timeout": redis.read_timeout,
        "max_retries": redis.max_retries,
        "tls": _tls(config),
    }
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(redis.addr, str):
        return RedisOptions.of(redis.addr, **given)
    return RedisOptions(addresses=redis.addr, **given)  # type: ignore[arg-type]


def original_keys(config: Configuration) -> Keys:
    """Name the keys that section `worker` names."""
    worker = config.worker
    return Keys.original(
        {word: worker.queues[word] for word in worker.priorities},
        processing=worker.processing_list_pattern,
        heartbeat=worker.heartbeat_key_pattern,
        completed=worker.completed_list,
        dead=worker.dead_letter_list,
    )


def retry_policy(config: Configuration) -> RetryPolicy:
    """Say how jobs without a policy of their own are retried: min(base * 2^(n-1), max), exactly."""
    worker = config.worker
    return RetryPolicy(
        max_attempts=worker.max_retries + 1,
        initial_delay=worker.backoff.base,
        max_delay=worker.backoff.max,
        jitter=False,
    )


def reaper_rule(config: Configuration) -> ReaperRule:
    """Say how silent workers are looked for."""
    reaper = config.reaper
    return ReaperRule(
        interval=reaper.interval, base_delay=reaper.base_delay, scan_count=reaper.scan_count
    )


def breaker_rule(config: Configuration) -> BreakerRule:
    """Say when a queue is left alone."""
    breaker = config.circuit_breaker
    return BreakerRule(
        failure_threshold=breaker.failure_threshold,
        window=breaker.window,
        cooldown_period=breaker.cooldown_period,
        min_samples=breaker.min_samples,
    )


def producer_rule(config: Configuration) -> ProducerRule:
    """Say what the producer does."""
    producer = config.producer
    return ProducerRule(
        scan_dir=producer.scan_dir,
        include_globs=producer.include_globs,
        exclude_globs=producer.exclude_globs,
        default_priority=producer.default_priority,
        high_priority_exts=producer.high_priority_exts,
        rate_limit_per_sec=producer.rate_limit_per_sec,
        rate_limit_key=producer.rate_limit_key,
    )


def scheduler_options(config: Configuration) -> SchedulerOptions:
    """Name the options of `Scheduler`, besides its database."""
    own = config.scheduler
    return {
        "redis": redis_options(config),
        "queues": config.queues,
        "schema": own.schema,
        "tenants": own.tenants,
        "sync_every": own.sync_every,
        "lease": own.lease,
        "max_workers": own.max_workers,
        "label": own.label,
        "app": own.app,
        "version": own.version,
        "migrate": own.migrate,
        "listen": own.listen,
        "prepare": own.prepare,
        "max_payload": own.max_payload,
        "retention": own.retention,
        "callback_secret": own.callback_secret,
        "callback_private": own.callback_private,
        "reaper": reaper_rule(config),
    }


def web_tokens(config: Configuration) -> list[Token]:
    """Name those who may use the HTTP API."""
    return [Token.of(name, said) for name, said in config.web.tokens.items()]


def _web_rules(config: Configuration) -> Iterator[str]:
    if not config.web.tokens and not loopback(config.web.host):
        yield (
            "web.tokens: must name a token where web.host is not this machine; `scheduler "
            "web-token NAME` makes one"
        )
    if len({token.sha256 for token in web_tokens(config)}) < len(config.web.tokens):
        yield "web.tokens: two have the same sha256; the log could not tell who it was"


def _worker_rules(config: Configuration) -> Iterator[str]:
    worker = config.worker
    for word in worker.priorities:
        if not worker.queues.get(word):
            yield f"worker.queues: has no list for {word!r}, one of worker.priorities"
    for word in set(worker.queues) - set(worker.priorities):
        yield (
            f"worker.queues: {word!r} is not among worker.priorities; nobody would take from that "
            "list"
        )
    if worker.brpoplpush_timeout > worker.heartbeat_ttl / 2:
        most = brief(worker.heartbeat_ttl / 2)
        yield f"worker.brpoplpush_timeout: must be at most half of worker.heartbeat_ttl, {most}"
    if worker.backoff.base > worker.backoff.max:
        longest = brief(worker.backoff.max)
        yield f"worker.backoff.base: must be at most worker.backoff.max, {longest}"
    yield from _name_rules(config)


def _name_rules(config: Configuration) -> Iterator[str]:
    """No key of Redis may be two things."""
    worker = config.worker
    names = {
        **{f"worker.queues.{word}": key for word, key in worker.queues.items()},
        "worker.completed_list": worker.completed_list,
        "worker.dead_letter_list": worker.dead_letter_list,
        "worker.heartbeat_key_pattern": worker.heartbeat_key_pattern,
        "producer.rate_limit_key": config.producer.rate_limit_key,
    }
    met: dict[str, str] = {}
    for name, key in names.items():
        if key in met:
            yield f"{name}: must not be the same as {met[key]}"
        met[key] = name
    own = original_keys(config).named(*OWN) if set(worker.priorities) <= set(worker.queues) else []
    for name, key in names.items():
        if key in own:
            yield f"{name}: must not be {key}, which the queue keeps for itself"
    begin, end = map(re.escape, worker.processing_list_pattern.split("%s"))
    for name, key in names.items():
        if re.fullmatch(f"{begin}.*{end}", key):
            yield (
                f"worker.processing_list_pattern: must not fit {name}, which is no processing list"
            )


def _redis_rules(config: Configuration) -> Iterator[str]:
    redis = config.redis
    if redis.read_timeout != redis.write_timeout:
        yield (
            "redis.write_timeout: must be as redis.read_timeout; a connection has one limit for "
            "both"
        )
    if redis.min_idle_conns > _connections(config):
        yield (
            f"redis.min_idle_conns: must be at most {_connections(config)}, "
            "redis.pool_size_multiplier for each CPU"
        )
    secure = redis.tls.enabled or (
        isinstance(redis.addr, str) and redis.addr.lower().startswith("rediss")
    )
    if not secure and (
        redis.tls.ca or redis.tls.cert or redis.tls.key or not redis.tls.check_hostname
    ):
        yield (
            "redis.tls.enabled: must be true where there are other keys of redis.tls; they would "
            "do nothing"
        )
    options = (
        [name for name, _ in parse_qsl(redis.addr.partition("?")[2])]
        if isinstance(redis.addr, str)
        else []
    )
    for option in options:
        if option in OF_KEYS:
            yield f"redis.addr: {option} would do nothing here; write redis.{OF_KEYS[option]}"
        elif option.startswith("tls_") and _tls(config):
            yield (
                f"redis.addr: {option} would do nothing beside keys of redis.tls; write "
                f"redis.tls.{option[4:]}"
            )


def _connections(config: Configuration) -> int:
    return min(10_000, config.redis.pool_size_multiplier * (os.cpu_count() or 1))


def _tls(config: Configuration) -> Tls | None:
    tls = config.redis.tls
    if not (tls.enabled or tls.ca or tls.cert or tls.key or not tls.check_hostname):
        return None
    return Tls(ca=tls.ca, cert=tls.cert, key=tls.key, check_hostname=tls.check_hostname)
