"""Checks of the Postgres server, and of how our tables are kept there."""

import zoneinfo
from collections.abc import Iterator
from datetime import timedelta

import orjson

from scheduler.doctor.findings import Severity, check, roughly, some
from scheduler.doctor.patient import Patient
from scheduler.errors import SchedulerError, SchemaMismatch
from scheduler.model.definition import JobSpec

OLDEST = 140_000
SPARE = 10  # connections that another instance would open
SKEW = timedelta(seconds=5)
DEAD = 10_000
AHEAD = 1
MOST = 5000
AWAY = ("postgres-away",)
TABLES = ("postgres-away", "postgres-rights", "postgres-schema")


@check(
    "postgres-away",
    Severity.FAULT,
    means="Nothing is claimed, fed or settled until it is back; everything goes on by itself then.",
    cure="Start the server, or correct scheduler.database; `scheduler config show` says where it "
    "comes from.",
)
def _away(patient: Patient) -> Iterator[str]:
    try:
        patient.tables.rows("clock")
    except SchedulerError as error:
        yield str(error)


@check(
    "postgres-version",
    Severity.WARNING,
    means="Nobody has tried this package on it.",
    cure="Move to a newer Postgres.",
    unless=AWAY,
)
def _version(patient: Patient) -> Iterator[str]:
    ((version, _, _),) = patient.tables.rows("server")
    if version < OLDEST:
        yield f"the server is version {version // 10000}, older than {OLDEST // 10000}"


@check(
    "postgres-read-only",
    Severity.FAULT,
    means="Nothing can be claimed, submitted or settled.",
    cure="Name the primary in the DSN, as with target_session_attrs=read-write, or end "
    "default_transaction_read_only.",
    unless=AWAY,
)
def _read_only(patient: Patient) -> Iterator[str]:
    ((_, read_only, _),) = patient.tables.rows("server")
    if read_only:
        yield "the server takes no writes: a standby, or set to read only"


@check(
    "postgres-connections",
    Severity.WARNING,
    means=f"An instance needs up to {SPARE} connections; one that starts now may not get them.",
    cure="Raise max_connections, or the connection limit of the role or database; or put PgBouncer "
    "in between.",
    unless=AWAY,
)
def _connections(patient: Patient) -> Iterator[str]:
    ((_, _, left),) = patient.tables.rows("server")
    if left < SPARE:
        yield f"{max(left, 0)} more connections are allowed"


@check(
    "postgres-pooler",
    Severity.FAULT,
    means="There is a pooler in transaction mode in between: changes are not heard, or no instance "
    "can start.",
    cure="Set scheduler.prepare to false, and scheduler.listen to a DSN that goes past the pooler, "
    "or to false.",
    unless=AWAY,
)
def _pooler(patient: Patient) -> Iterator[str]:
    settings = patient.settings
    if settings.prepare and not patient.tables.prepares():
        yield "a connection may not begin with settings of its own, and scheduler.prepare is true"
    elif settings.listen and not patient.tables.hears(
        settings.listen if isinstance(settings.listen, str) else None
    ):
        yield "what is said by NOTIFY is not heard by LISTEN, and scheduler.listen is not false"


@check(
    "postgres-rights",
    Severity.FAULT,
    means="Statements of ours are refused.",
    cure="GRANT USAGE on the schema, and SELECT, INSERT, UPDATE and DELETE on its tables, to the "
    "role.",
    unless=AWAY,
)
def _rights(patient: Patient) -> Iterator[str]:
    missing = [f"{right} on {table}" for table, right in patient.tables.rows("missing_rights")]
    if missing:
        yield f"the role may not {some(missing)}"


@check(
    "postgres-schema",
    Severity.FAULT,
    means="No instance with this package starts, unless it may migrate.",
    cure="Run `scheduler migrate` where the tables are older; upgrade the package where they are "
    "newer.",
    unless=("postgres-away", "postgres-rights"),
)
def _schema(patient: Patient) -> Iterator[str]:
    try:
        patient.tables.check_version()
    except SchemaMismatch as error:
        yield str(error)


@check(
    "clock-skew",
    Severity.WARNING,
    means="Fires and leases go by the database's clock and are right; times in logs are not.",
    cure="Let NTP set the clock of that machine.",
    unless=TABLES,
)
def _clocks(patient: Patient) -> Iterator[str]:
    ahead = patient.tables.skew()
    if abs(ahead) > SKEW:
        yield f"the clock of this machine is {off(ahead)} that of Postgres"
    for label, skew in patient.tables.rows("skewed", limit=SKEW):
        yield f"the clock of instance {label} is {off(skew)} that of Postgres"


@check(
    "timezone-data",
    Severity.FAULT,
    means="Instances on this machine do not run the jobs of that zone.",
    cure="Install the system's tzdata, or `pip install tzdata`, of the version that the other "
    "machines have.",
    unless=TABLES,
)
def _zones(patient: Patient) -> Iterator[str]:
    known = zoneinfo.available_timezones()
    rows = patient.tables.rows("definitions", limit=MOST)
    zones = {str(orjson.loads(spec).get("timezone", "UTC")) for _, _, spec in rows}
    if zones - known:
        yield f"this machine knows no zone {some(sorted(zones - known))}"


@check(
    "ledger-partitions",
    Severity.WARNING,
    means="Rows of these days go into the default partition, which retention has to delete row by "
    "row.",
    cure="Let one instance's role own the tables, or run `scheduler migrate` and an instance as "
    "such a role.",
    unless=TABLES,
)
def _partitions(patient: Patient) -> Iterator[str]:
    missing = [day for (day,) in patient.tables.rows("missing_days", ahead=AHEAD)]
    if missing:
        yield f"the ledger has no partition for {some(missing)}"


@check(
    "vacuum-behind",
    Severity.WARNING,
    means="Statements on the table read more and more dead rows, and get slower.",
    cure="Turn autovacuum on for it, run VACUUM on it now, and look for transactions that stay "
    "open.",
    unless=TABLES,
)
def _vacuum(patient: Patient) -> Iterator[str]:
    for table, live, dead, off in patient.tables.rows("unvacuumed", dead=DEAD):
        yield (
            f"{table}: autovacuum is off"
            if off
            else f"{table}: {dead} dead rows beside {live} live ones"
        )


@check(
    "idle-in-transaction",
    Severity.FAULT,
    means="What it has locked waits for it, and vacuum can remove nothing.",
    cure="End it by pg_terminate_backend(pid); set idle_in_transaction_session_timeout for the "
    "application.",
    unless=TABLES,
)
def _idle(patient: Patient) -> Iterator[str]:
    for pid, user, application, idle, tables in patient.tables.rows(
        "idle_in_transaction", idle=patient.late
    ):
        who = f"session {pid} of {user} ({application or 'no name'})"
        yield f"{who} does nothing since {roughly(idle)}, with locks on {some(tables)}"


@check(
    "row-invalid",
    Severity.WARNING,
    means="The job is known and left alone by instances of this version, or the row means nothing.",
    cure="Upgrade this package if a newer one registered the job; else register or submit it anew.",
    unless=TABLES,
)
def _rows(patient: Patient) -> Iterator[str]:
    rows = patient.tables.rows("definitions", limit=MOST)
    foreign = [f"{tenant}/{job}" for tenant, job, spec in rows if JobSpec.from_json(spec).foreign]
    if foreign:
        yield f"the definition cannot be read here: {some(foreign)}"
    broken: dict[str, list[str]] = {}
    for table, tenant, job in patient.tables.rows("broken_rows", limit=MOST):
        broken.setdefault(table, []).append(f"{tenant}/{job}")
    for table, jobs in broken.items():
        yield f"rows of {table} lack what belongs to them: {some(jobs)}"


def off(ahead: timedelta) -> str:
    """Say how far a clock is off."""
    return f"{roughly(abs(ahead))} {'ahead of' if ahead > timedelta(0) else 'behind'}"
