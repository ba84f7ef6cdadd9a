"""Checks of the work that the tables speak of: jobs that nobody runs, that fail, that wait."""

from collections.abc import Iterator

from scheduler.doctor.findings import Severity, check, roughly, some
from scheduler.doctor.patient import Patient
from scheduler.doctor.postgres import TABLES
from scheduler.model.outcomes import DISAPPEARED

MOST = 1000
COUNTED = 10_000
RUNS = 3
TRIES = 3


@check(
    "job-stranded",
    Severity.FAULT,
    means="Its fires pass, and nothing runs.",
    cure="Start an instance of the app that registers its function; for a job with a queue, an "
    "instance that mirrors its tenant (scheduler.tenants); or unregister the job.",
    unless=TABLES,
)
def _stranded(patient: Patient) -> Iterator[str]:
    jobs = [f"{tenant}/{job}" for tenant, job in patient.tables.rows("stranded", limit=MOST)]
    if jobs:
        yield f"no live instance can run {some(jobs)}"


@check(
    "job-disappeared",
    Severity.WARNING,
    means="Something other than unregister() deletes rows of the table job. Instances that have "
    "the function register the job again at their next sync.",
    cure="Find the client that deletes them. Use unregister() to remove a job.",
    unless=TABLES,
)
def _disappeared(patient: Patient) -> Iterator[str]:
    jobs: dict[bool, list[str]] = {False: [], True: []}
    for tenant, job, is_back in patient.tables.rows("disappeared", reason=DISAPPEARED, limit=MOST):
        jobs[is_back].append(f"{tenant}/{job}")
    if jobs[False]:
        yield f"the row of {some(jobs[False])} is missing, without an unregister()"
    if jobs[True]:
        yield f"registered again within the last day, after the row disappeared: {some(jobs[True])}"


@check(
    "lease-expired",
    Severity.FAULT,
    means="The process that ran it is gone, and no instance takes the fire up again.",
    cure="Start an instance that has the function of the job; it is run again, or recorded as "
    "crashed, at once.",
    unless=TABLES,
)
def _leases(patient: Patient) -> Iterator[str]:
    for tenant, job, holder, late in patient.tables.rows(
        "expired_leases", late=patient.late, limit=MOST
    ):
        yield f"the lease of {holder} on {tenant}/{job} ran out {roughly(late)} ago"


@check(
    "job-failing",
    Severity.WARNING,
    means=f"Its last {RUNS} runs all went wrong.",
    cure="`scheduler explain TENANT JOB` says why; "
    "`scheduler pause TENANT JOB` until it is mended.",
    unless=TABLES,
)
def _failing(patient: Patient) -> Iterator[str]:
    jobs = [
        f"{tenant}/{job} ({outcome})"
        for tenant, job, outcome in patient.tables.rows("failing", runs=RUNS, limit=MOST)
    ]
    if jobs:
        yield some(jobs)


@check(
    "jobs-not-fed",
    Severity.FAULT,
    means="They are due, and wait in Postgres: no instance feeds this queue, or it is full, or its "
    "Redis is away.",
    cure="Start an instance with redis=, as `scheduler run --role=scheduler`; see the other "
    "findings about Redis.",
    unless=TABLES,
)
def _unfed(patient: Patient) -> Iterator[str]:
    for queue, count, age in patient.tables.rows("unfed", late=patient.late):
        many = f"{count} jobs{' or more' if count >= COUNTED else ''}"
        yield f"queue {queue}: {many}, the oldest due since {roughly(age)}"


@check(
    "queue-paused",
    Severity.NOTE,
    means="Nobody feeds it, and workers of ours take nothing from it; what they have runs to its "
    "end.",
    cure="`scheduler resume-queue QUEUE`, once what it was paused for is over.",
    unless=TABLES,
)
def _paused(patient: Patient) -> Iterator[str]:
    for queue, age in patient.paused.items():
        yield f"queue {queue} is paused since {roughly(age)}"


@check(
    "tenant-paused",
    Severity.NOTE,
    means="Its recurring jobs do not fire, and its submitted jobs are not fed.",
    cure="Call `resume_tenant`, or `delete_tenant` to complete a deletion that was interrupted.",
    unless=TABLES,
)
def _paused_tenants(patient: Patient) -> Iterator[str]:
    for tenant, (paused, deleting) in patient.paused_tenants.items():
        if deleting is None:
            yield f"tenant {tenant} has been paused for {roughly(paused)}"
        else:
            yield f"tenant {tenant} has been in deletion for {roughly(deleting)}"


@check(
    "callbacks-failing",
    Severity.WARNING,
    means="Receivers were not told how jobs ended; each is tried again for a day.",
    cure="See whether the receiver answers with 2xx, and whether its address is private "
    "(scheduler.callback_private).",
    unless=TABLES,
)
def _callbacks(patient: Patient) -> Iterator[str]:
    ((count, gave_up, why),) = patient.tables.rows("untold", tries=TRIES)
    if count:
        yield (
            f"{count} callbacks were tried in vain, {gave_up} of them are given up; the newest: "
            f"{why}"
        )
