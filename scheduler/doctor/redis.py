"""Checks of the Redis server."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from scheduler.dialects.opening import DEFAULT
from scheduler.doctor.findings import Severity, check, some
from scheduler.doctor.patient import Patient
from scheduler.doctor.postgres import AWAY, SKEW, TABLES, off
from scheduler.errors import QueueError, QueueUnavailable, SchedulerError

FULL = 0.9
FORBIDDEN = "no permissions"  # of a command or a key, in every version
REDIS = ("redis-away", "redis-refused", "redis-busy")
QUEUES = (*TABLES, *REDIS)


@check(
    "redis-away",
    Severity.FAULT,
    means="Submitted jobs wait in Postgres, and workers have nothing to do; everything goes on by "
    "itself later.",
    cure="Start the server, or correct redis.addr; `scheduler config show` says where it comes "
    "from.",
)
def _away(patient: Patient) -> Iterator[str]:
    error = _greeted(patient)
    if isinstance(error, QueueUnavailable) and "BUSY" not in str(error):
        yield str(error)


@check(
    "redis-refused",
    Severity.FAULT,
    means="It cannot be used: too old, a Sentinel or cluster where a server is named, "
    "or it does not let us in.",
    cure="Use Redis 6.2 or newer, or Valkey; correct redis.addr, redis.username and redis.password "
    "(docs/redis.md).",
    unless=("redis-away",),
)
def _refused(patient: Patient) -> Iterator[str]:
    error = _greeted(patient)
    if (
        error is not None
        and not isinstance(error, QueueUnavailable)
        and FORBIDDEN not in str(error)
    ):
        yield str(error)


@check(
    "redis-busy",
    Severity.FAULT,
    means="A script that does not end keeps Redis from everything else.",
    cure="SCRIPT KILL, or SHUTDOWN NOSAVE if it has written; none of ours takes longer than "
    "milliseconds.",
    unless=("redis-away",),
)
def _busy(patient: Patient) -> Iterator[str]:
    error = _greeted(patient)
    if error is not None and "BUSY" in str(error):
        yield str(error)


@check(
    "redis-evicts",
    Severity.WARNING,
    means="When it is full it forgets jobs and leases; what is in Postgres is fed again, "
    "the rest is lost.",
    cure="CONFIG SET maxmemory-policy noeviction, and in its configuration file.",
    unless=REDIS,
)
def _evicts(patient: Patient) -> Iterator[str]:
    policy = patient.info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield f"maxmemory-policy is {policy}"


@check(
    "redis-full",
    Severity.WARNING,
    means="When it is full, pushes are refused; jobs wait in Postgres until there is room.",
    cure="Raise maxmemory, start more workers, or see what else is kept there.",
    unless=REDIS,
)
def _full(patient: Patient) -> Iterator[str]:
    used, most = int(patient.info.get("used_memory", 0)), int(patient.info.get("maxmemory", 0))
    if most and used > FULL * most:
        yield f"{used * 100 // most} % of maxmemory is in use"


@check(
    "redis-forgets",
    Severity.NOTE,
    means="A restart empties it. Submitted jobs are in Postgres and are fed again; "
    "files and jobs of others are lost.",
    cure="Set appendonly yes if queues hold what only Redis has.",
    unless=REDIS,
)
def _forgets(patient: Patient) -> Iterator[str]:
    if int(patient.info.get("aof_enabled", 0)):
        return
    answer = patient.redis.call("CONFIG", "GET", "save")
    saved = answer.get("save") if isinstance(answer, dict) else [*answer, ""][1]
    if not saved:
        yield "neither an append-only file nor snapshots are kept"


@check(
    "redis-clock",
    Severity.WARNING,
    means="Retries and delays in Redis come too early or too late by as much.",
    cure="Let NTP set the clock of that machine.",
    unless=(*AWAY, *REDIS),
)
def _clock(patient: Patient) -> Iterator[str]:
    seconds, micros = patient.redis.call("TIME")
    here = datetime.now(UTC) - datetime.fromtimestamp(int(seconds) + int(micros) / 1e6, UTC)
    ahead = patient.tables.skew() - here
    if abs(ahead) > SKEW:
        yield f"the clock of Redis is {off(ahead)} that of Postgres"


@check(
    "redis-rights",
    Severity.FAULT,
    means="Jobs of this queue are not fed or not settled.",
    cure="Give the user the rights that docs/redis.md lists.",
    unless=QUEUES,
)
def _rights(patient: Patient) -> Iterator[str]:
    for name in patient.epochs:
        if patient.settings.queues.get(name, DEFAULT)["dialect"] == "standard":
            missing = [
                str(command[0]) for command in _harmless(name) if not _may(patient, *command)
            ]
            if missing:
                yield f"queue {name}: the user may not run {some(missing)}"


def _greeted(patient: Patient) -> SchedulerError | None:
    if not patient.has_redis:
        return None
    try:
        patient.redis.call("EXISTS", "jobqueue:doctor")
    except QueueError as error:
        return error
    return None


def _may(patient: Patient, *command: object) -> bool:
    try:
        patient.redis.call(*command)
    except QueueError as error:
        return FORBIDDEN not in str(error)
    return True


def _harmless(queue: str) -> Sequence[tuple[object, ...]]:
    """Every command that a scheduler needs, on a key that is not there: none of them leaves
    anything.
    """
    key, group = f"jobqueue:{{{queue}}}:doctor", "settlers"
    return (
        ("EVAL", "return 1", 1, key),
        ("EXISTS", key),
        ("GET", key),
        ("HDEL", key, "field"),
        ("HEXISTS", key, "field"),
        ("HGET", key, "field"),
        ("HGETALL", key),
        ("HKEYS", key),
        ("HLEN", key),
        ("HMGET", key, "field"),
        ("LLEN", key),
        ("PEXPIRE", key, 0),
        ("PUBLISH", "jobqueue:events:doctor", ""),
        ("SET", key, "", "XX"),
        ("XACK", key, group, "0-1"),
        ("XAUTOCLAIM", key, group, "settler", 0, "0-0"),
        ("XDEL", key, "0-1"),
        ("XGROUP", "CREATE", key, group, "$"),
        ("XRANGE", key, "0-1", "0-1"),
        ("XREADGROUP", "GROUP", group, "settler", "COUNT", 1, "STREAMS", key, ">"),
        ("ZADD", key, "XX", 0, "member"),
        ("ZCARD", key),
        ("ZCOUNT", key, 0, 1),
        ("ZLEXCOUNT", key, "-", "+"),
        ("ZMSCORE", key, "member"),
        ("ZRANGEBYSCORE", key, 0, 1),
        ("ZREM", key, "member"),
        ("ZREVRANGEBYSCORE", key, 1, 0),
    )
