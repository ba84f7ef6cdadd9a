"""Thousands of seeds: the seed's algorithm runs a fire twice, ours never loses or doubles one."""

import logging
import random
from collections import Counter
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from scheduler.model.definition import Key
from scheduler.model.schedules import CatchUp
from scheduler.store.engine import Database
from scheduler.store.schema import migrate
from tests.simulation.ours import Instance, Log, Plans, delivery
from tests.simulation.seed import TABLES as seed_tables
from tests.simulation.seed import SeedInstance
from tests.simulation.world import START, World

BIT = (
    # a process suspended between its claim and the answer started a fire that others were running
    # by then
    172,
    239,  # two audit rows of one moment, in two transactions
    1604,  # two triggers of one moment, the second while the first was being claimed
    # a clock ahead of the database's, which nobody put right, asked for a trigger without a pause
    1688,
    2566,  # a registration that was suspended began a schedule before the last fire
    2091,  # a trigger waited for ever behind fires that wait for each other
)
# Misfortunes prefer processes that are executing one of these statements.
RARE = ("redrive", "redrive_queued", "bury", "renew", "begin", "claim_triggers", "record")
COVERED = (
    "crash in claim",
    "crash in finish",
    "crash in renew",
    "crash in redrive",
    "suspended past the lease",
    "changed",
    "unregistered while a run lived",
    "connection broke unanswered",
    "finish waited",
    "lease lost",
    "re-driven",
    "crashed",
    "skipped",
    "stale mirror",
    "row held by another",
    "missed",
    "misfire",
    "paused",
    "pause",
    "resume",
    "triggered",
    "a trigger was re-driven",
    "crash in claim_triggers",
    "crash in claim_queued",
    "queued",
    "lock row deleted under a lease",
    "finished after deletion",
    "claim beside an open renewal",
    "old and new definitions side by side",
    "submitted after its process died",
    "crash in begin",
    "lock row swept",
)


# Every stretch of every schedule, noted by the database itself in the transaction that begins or
# ends it.
EPOCHS = """
CREATE TABLE epoch (seq bigserial, tenant text, id text, every interval, first timestamptz, until timestamptz);
CREATE FUNCTION note_epoch() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN
  IF TG_OP <> 'INSERT' THEN
    UPDATE epoch SET until = OLD.next_run_at WHERE tenant = OLD.tenant AND id = OLD.id AND until IS NULL;
  END IF;
  IF TG_OP <> 'DELETE' THEN
    INSERT INTO epoch (tenant, id, every, first)
    VALUES (NEW.tenant, NEW.id, (NEW.spec->>'every_us')::bigint * interval '1 microsecond', NEW.next_run_at);
  END IF;
  RETURN NULL;
END $$;
CREATE TABLE asked (tenant text, id text, at timestamptz);
CREATE FUNCTION note_trigger() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN
  IF TG_OP = 'DELETE' THEN
    DELETE FROM asked WHERE tenant = OLD.tenant AND id = OLD.id AND at = OLD.trigger_at;
  ELSE
    INSERT INTO asked VALUES (NEW.tenant, NEW.id, NEW.trigger_at);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER asked AFTER UPDATE ON job FOR EACH ROW WHEN (OLD.trigger_at IS NULL AND NEW.trigger_at IS NOT NULL)
  EXECUTE FUNCTION note_trigger();
CREATE TRIGGER withdrawn AFTER DELETE ON job FOR EACH ROW EXECUTE FUNCTION note_trigger();
CREATE TABLE submitted (tenant text, id uuid);
CREATE FUNCTION note_submitted() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN
  INSERT INTO submitted VALUES (NEW.tenant, NEW.id);
  RETURN NULL;
END $$;
CREATE TRIGGER submitted AFTER INSERT ON job_queue FOR EACH ROW EXECUTE FUNCTION note_submitted();
CREATE TRIGGER made AFTER INSERT OR DELETE ON job FOR EACH ROW EXECUTE FUNCTION note_epoch();
CREATE TRIGGER changed AFTER UPDATE ON job FOR EACH ROW WHEN (OLD.spec_hash <> NEW.spec_hash)
  EXECUTE FUNCTION note_epoch();
"""


@pytest.fixture
def simulation_schema(dsn: str, schema: str) -> str:
    database = Database.open(dsn, schema=schema, prepare=True)
    migrate(database)
    database.close()
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", (schema,))
        connection.execute(EPOCHS)
    return schema


@pytest.mark.timeout(3600)
def test_ours_neither_loses_nor_doubles_a_fire(
    dsn: str, simulation_schema: str, full: bool
) -> None:
    seen: Counter[str] = Counter()
    connections: list[psycopg.Connection[Any]] = []
    for seed in dict.fromkeys([*BIT, *range(3000 if full else 40)]):
        try:
            seen += simulate(seed, dsn, simulation_schema, connections)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    for connection in connections:
        connection.close()
    logging.getLogger(__name__).info("seen over all seeds: %s", dict(seen))
    assert [what for what in COVERED if not seen[what]] == []


def test_the_seeds_algorithm_runs_a_fire_twice(dsn: str, simulation_schema: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", (simulation_schema,))
        connection.execute(seed_tables)
        connection.execute(
            "INSERT INTO seed_job VALUES ('a', %s, '10 s'), ('b', %s, '30 s')", (START, START)
        )
    connections: list[psycopg.Connection[Any]] = []
    world, runs = World(1, connections, dsn), list[tuple[str, Any]]()
    world.faults = False  # nothing dies: a mirror up to a minute old is enough
    world.processes += [
        SeedInstance(world, f"i{n}", simulation_schema, ["a", "b"], runs) for n in range(3)
    ]
    try:
        while world.now < START + timedelta(minutes=3):
            if not world.step():
                world.pass_time(0.1)
    finally:
        world.close()
        for connection in connections:
            connection.close()
    fires = Counter(runs)
    assert max(fires.values()) > 1, "the simulation no longer finds the double fire"
    assert len(runs) > 2 * len(fires), "every instance runs every fire"


def simulate(
    seed: int, dsn: str, schema: str, connections: list[psycopg.Connection[Any]]
) -> Counter[str]:
    random.seed(seed)
    world = World(seed, connections, dsn)
    log = Log()
    plans = {Key(f"s{seed}", f"j{n}"): options(world) for n in range(3)}
    plans[Key(f"s{seed}", "queued")] = options(world, queue=True)

    def start() -> None:
        world.processes.append(Instance(world, f"i{len(world.processes)}", schema, log, plans))

    for _ in range(3):
        start()
    try:
        for _ in range(700):
            chance = world.rng.random()
            if chance < 0.80 or not world.faults:
                if not world.step():
                    world.pass_time(world.rng.choice([0.05, 0.5, 2.0]))
            elif chance < 0.985:
                world.pass_time(world.rng.choice([0.001, 0.05, 0.3, 1.0]))
            else:
                misfortune(world, plans, schema, start)
        drain(world, plans, schema)
        check(world, log, plans, schema, dsn)
    finally:
        world.close()
    return world.seen


def options(world: World, *, queue: bool = False) -> dict[str, Any]:
    """Choose a definition: half of them plain."""
    chosen: dict[str, Any] = {"every": world.rng.choice(["5s", "10s", "30s"])}
    if queue:
        chosen |= {"queue": "q", "fn": None, "delivery": "at_least_once"}
    if world.rng.random() < 0.5:
        chosen["overlap"] = world.rng.choice(["skip", "queue_one"])
        chosen["misfire"] = world.rng.choice(["run_once", "skip", "catch_up"])
        chosen["grace"] = world.rng.choice(["20s", "1m"])
        if chosen["misfire"] == "catch_up":
            chosen["catch_up"] = CatchUp(max_count=4)
    return chosen


def misfortune(world: World, plans: Plans, schema: str, start: Any) -> None:
    rare = [p for p in world.live() if any(a.midway and a.doing in RARE for a in p.actors)]
    process = world.rng.choice(rare or world.live())
    assert isinstance(process, Instance)
    kind = world.rng.choice(
        [
            "crash",
            "crash",
            "suspend",
            "suspend",
            "change",
            "replace",
            "absence",
            "trigger",
            "trigger",
            "pause",
            "resume",
            "unlock",
            "unlock",
            "form",
        ]
    )
    if kind == "crash":
        process.crash()
        start()
    elif kind == "suspend":
        process.suspended = not process.suspended
        if process.suspended:
            process.suspended_at = world.now  # type: ignore[attr-defined]
        elif (world.now - process.suspended_at).total_seconds() > 10:  # type: ignore[attr-defined]
            world.seen["suspended past the lease"] += 1
    elif kind == "change":
        key = world.rng.choice(list(plans))
        plans[key] = options(world, queue="queue" in plans[key])
        process.wishes.append(lambda: process.register({key: plans[key]}))
        world.seen["changed"] += 1
    elif kind == "unlock":
        process.unlock(world.rng.choice(list(plans)), schema)
    elif kind == "form":  # a deploy moves a job between a function and a queue, process by process
        key = world.rng.choice([key for key in plans if delivery(key) == "at_least_once"])
        plans[key] = options(world, queue="queue" not in plans[key])
        process.wishes.append(lambda: process.register({key: plans[key]}))
        world.seen["old and new definitions side by side"] += 1
    elif kind == "replace":
        key = world.rng.choice(list(plans))
        process.wishes.append(lambda: process.unregister_and_register(key))
    elif kind in ("trigger", "pause", "resume"):
        key = world.rng.choice(list(plans))
        process.wishes.append(lambda: process.steer(kind, key))
    elif kind == "settle":
        world.settle(schema, next(iter(plans)).tenant)
    else:
        world.pass_time(90)


def drain(world: World, plans: Plans, schema: str) -> None:
    """No more misfortune: everybody goes on until everything has settled."""
    world.faults = False
    for process in world.live():
        process.suspended = False
        assert isinstance(process, Instance)
        process.wishes += [partial(process.steer, "resume", key) for key in plans]
    end = world.now + timedelta(seconds=120)
    while world.now < end:
        for _ in range(10_000):
            if not world.step():
                break
        else:
            raise AssertionError("a busy loop: actors are ready for ever")
        world.settle(schema, next(iter(plans)).tenant)
        world.pass_time(2.0)  # no more often than lost runs are looked for


def unrecorded(
    log: Log, ended: set[tuple[Key, datetime]]
) -> dict[tuple[Key, datetime], tuple[bool, datetime | None]]:
    """Return the leases whose lock rows were deleted and of whose fires nothing is recorded: their
    processes died, or lost them by the clock too.
    """
    excused = {fire: lease for fire, lease in log.unlocked.items() if fire not in ended}
    for record in log.records:
        lost = record.run.lost and not record.run.lock_deleted
        if (record.key, record.fire_at) in excused and record.ended and not lost:
            assert record.process.crashed, (
                f"{record.key} ended its fire {record.fire_at}, and nothing is recorded"
            )
    return excused


def check_mirror(connection: psycopg.Connection[Any], tenant: str, unlocked: set[str]) -> None:
    """The rows that the mirror reads name the newest ledger row of each job, unless its lock row was
    deleted under a lease.
    """
    rows = connection.execute(
        "SELECT j.id, greatest(j.ledger_at, l.ledger_at), CASE WHEN j.ledger_at > l.ledger_at OR l.ledger_at IS NULL"
        "   THEN j.ledger_outcome ELSE l.ledger_outcome END, h.at, h.outcomes"
        " FROM job j LEFT JOIN job_lock l USING (tenant, id) CROSS JOIN LATERAL ("
        "   SELECT h.at, array_agg(h.outcome) FROM job_history h WHERE h.tenant = j.tenant AND h.job_id = j.id"
        "   AND h.kind <> 'audit' GROUP BY h.at ORDER BY h.at DESC LIMIT 1) h(at, outcomes)"
        " WHERE j.tenant = %s",
        (tenant,),
    ).fetchall()
    for job_id, at, outcome, newest, outcomes in rows:
        shown = at == newest and outcome in outcomes
        assert shown or job_id in unlocked, (
            f"the mirror shows {at} {outcome} of {job_id}, not {newest} {outcomes}"
        )


def check(world: World, log: Log, plans: Plans, schema: str, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", (schema,))
        connection.execute("SET TimeZone = 'UTC'")
        tenant = next(iter(plans)).tenant
        ledger = connection.execute(
            "SELECT job_id, at, outcome, missed_from, missed_count, attempts, reason FROM "
            "job_history"
            " WHERE tenant = %s AND kind = 'fire'",
            (tenant,),
        ).fetchall()
        triggered = connection.execute(
            "SELECT job_id, at, attempts FROM job_history WHERE tenant = %s AND kind = 'trigger'"
            " UNION ALL SELECT id, fire_at, NULL FROM job_lock WHERE tenant = %s AND triggered",
            (tenant, tenant),
        ).fetchall()
        asked = connection.execute(
            "SELECT id, at FROM asked WHERE tenant = %s", (tenant,)
        ).fetchall()
        under_way = connection.execute(
            "SELECT id, fire_at, '', missed_from FROM job_lock WHERE tenant = %s AND owner IS NOT "
            "NULL",
            (tenant,),
        ).fetchall()
        epochs = connection.execute(
            "SELECT id, every, first, until FROM epoch WHERE tenant = %s ORDER BY seq", (tenant,)
        ).fetchall()
        submitted = connection.execute(
            "SELECT id::text FROM submitted WHERE tenant = %s", (tenant,)
        ).fetchall()
        died = connection.execute(
            "SELECT count(*) FROM job_history WHERE tenant = %s AND outcome = 'queued' AND attempts IS "
            "NOT NULL",
            (tenant,),
        ).fetchall()
        became = connection.execute(
            "SELECT job->>'id' FROM job_history WHERE tenant = %s AND outcome = 'queued'", (tenant,)
        ).fetchall()
        assert sorted(submitted) == sorted(became), "each fire that was queued is one job"
        rows = connection.execute(
            "SELECT id, next_run_at FROM job WHERE tenant = %s", (tenant,)
        ).fetchall()
        nexts: dict[str, Any] = dict(rows)
        check_mirror(connection, tenant, {key.job_id for key, _ in log.unlocked})
    # A change may begin a schedule at the very moment of a trigger: two runs, each with a row of
    # its kind.
    twins = {(Key(tenant, job_id), at) for job_id, at, *_ in ledger} & {
        (Key(tenant, job), at) for job, at, _ in triggered
    }
    starts = Counter(
        (record.key, record.fire_at, record.attempt)
        for record in log.records
        if (record.key, record.fire_at) not in twins
    )
    assert [start for start, count in starts.items() if count > 1] == [], (
        "two runs of one (fire, attempt)"
    )
    once = Counter(
        (record.key, record.fire_at)
        for record in log.records
        if delivery(record.key) == "at_most_once" and (record.key, record.fire_at) not in twins
    )
    assert [fire for fire, count in once.items() if count > 1] == [], (
        "a fire that runs at most once ran again"
    )
    accepted = Counter(fire for fire in log.accepted if fire not in twins)
    assert [fire for fire, count in accepted.items() if count > 1] == [], (
        "two accepted finishes of a fire"
    )
    ended = {
        (Key(tenant, job_id), at) for job_id, at, outcome, *_ in ledger if outcome != "skipped"
    }
    ended |= {(Key(tenant, job_id), at) for job_id, at, _ in triggered}
    excused = unrecorded(log, ended)
    asked = [
        (job_id, at)
        for job_id, at in asked
        if not (excused.get((Key(tenant, job_id), at)) or (False,))[0]
    ]
    assert Counter(asked) == Counter((job_id, at) for job_id, at, _ in triggered), (
        "a trigger is one run, and a row"
    )
    ran = {(record.key, record.fire_at) for record in log.records}
    assert set(accepted) <= ended
    for key in plans:
        # A late fire waits for the body before it; what is later than the grace coalesces: 60 s, 28
        # s, and a look. A registration may have mistaken the time by half of an answer that took
        # long. Four fires may wait to be caught up with, each for the body before it.
        back = timedelta(seconds=4 * 30 + 95 if plans[key].get("misfire") == "catch_up" else 95)
        assert world.now - back < nexts[key.job_id] <= world.now + timedelta(seconds=75), "stalled"
    covered = ran | {(Key(tenant, job_id), at) for job_id, at, *_ in ledger} | excused.keys()
    missed = [
        (Key(tenant, row[0]), row[3], row[1]) for row in [*ledger, *under_way] if row[3] is not None
    ]
    missed += [(key, begin, at) for (key, at), (_, begin) in excused.items() if begin is not None]
    for job_id, every, first, until in epochs:
        key, fire = Key(tenant, job_id), first
        while fire < (until or nexts[job_id]):
            inside = any(job == key and begin <= fire < end for job, begin, end in missed)
            assert (key, fire) in covered or inside, f"{key} lost its fire {fire}"
            fire += every
    world.seen["fires"] += len(ledger)
    world.seen["re-driven"] += sum(1 for row in ledger if row[5])
    world.seen["skipped"] += sum(1 for row in ledger if row[2] == "skipped")
    world.seen["crashed"] += sum(1 for row in ledger if row[2] == "crashed")
    world.seen["missed"] += sum(1 for row in ledger if row[4])
    world.seen["misfire"] += sum(1 for row in ledger if row[6] == "misfire")
    world.seen["paused"] += sum(1 for row in ledger if row[6] == "paused")
    world.seen["triggered"] += len(triggered)
    world.seen["queued"] += len(became)
    world.seen["submitted after its process died"] += died[0][0]
    world.seen["finished after deletion"] += len(log.unlocked.keys() & accepted.keys())
    world.seen["a trigger was re-driven"] += sum(1 for row in triggered if row[2])
