"""What is done to queues, by whoever does it; the same is to be left in Redis by everybody."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

Scenario = Callable[["Side"], None]
SCENARIOS: dict[str, Scenario] = {}
POLICIES = (
    "failParentOnFailure",
    "continueParentOnFailure",
    "ignoreDependencyOnFailure",
    "removeDependencyOnFailure",
)


class Side(Protocol):
    """Somebody who produces and works."""

    def add(self, name: str, data: Any, **opts: Any) -> str:
        """Add a job to the queue mail."""

    def add_many(self, jobs: Iterable[tuple[str, Any, dict[str, Any]]]) -> None:
        """Add jobs in one call."""

    def flow(self, flow: dict[str, Any]) -> None:
        """Add a tree of jobs."""

    def queue(self, method: str, *args: Any) -> Any:
        """Steer the queue mail."""

    def requeue(self, *ids: str) -> None:
        """Let failed jobs run again, with all their attempts."""

    def work(self, ends: int, *queues: str, stalled_ms: int = 30_000) -> None:
        """Work, one job at a time, until so many have completed or failed for good."""

    def idle(self) -> bool:
        """Whether nothing waits, and nothing is worked on."""

    def work_off(self) -> None:
        """Work, one job at a time, until nothing waits."""

    def abandon(self, stalls: int = 0) -> None:
        """Leave the next job as a worker does that died, whose lock has run out; it may have
        stalled before.
        """


def scenario(fn: Scenario) -> Scenario:
    """Collect it."""
    SCENARIOS[fn.__name__] = fn
    return fn


@scenario
def add(side: Side) -> None:
    side.add("job", {"a": 1})
    side.add(
        "job",
        {"text": "é\n\"'", "deep": [1, 2.5, None, {"b": True}]},
        attempts=3,
        backoff={"type": "fixed", "delay": 5},
    )
    side.add("other", {}, lifo=True)
    side.add("job", {}, jobId="mine-1", removeOnComplete={"age": 60, "count": 5}, removeOnFail=True)
    side.add("job", {"again": 1}, jobId="mine-1")
    side.add("job", {}, keepLogs=3, stackTraceLimit=2, timestamp=1_600_000_000_000)


@scenario
def add_in_bulk(side: Side) -> None:
    side.add_many(
        [("job", {"a": number}, {"priority": number % 3, "delay": 0}) for number in range(10)]
    )


@scenario
def priorities(side: Side) -> None:
    for priority in (3, 1, 0, 1, 2_097_151):
        side.add("job", {"a": priority}, priority=priority)


@scenario
def priorities_worked(side: Side) -> None:
    for priority in (3, 1, 0, 1):
        side.add("job", {"value": priority}, priority=priority)
    side.work(4)


@scenario
def delay(side: Side) -> None:
    side.add("job", {}, delay=60_000)
    side.add("job", {}, delay=30_000, priority=2)


@scenario
def delay_worked(side: Side) -> None:
    side.add("job", {}, delay=150)
    side.add("job", {}, delay=100, priority=2)
    side.work(2)


@scenario
def success(side: Side) -> None:
    side.add("job", {"value": {"sent": True}, "progress": 12.5})
    side.add("job", {"value": "text", "progress": 42})
    side.add("job", {})
    side.work(3)


@scenario
def retry(side: Side) -> None:
    side.add("job", {"fails": 2, "value": 1}, attempts=3)
    side.work(1)
    side.add("job", {"fails": 1, "value": 1}, attempts=3, backoff=50, priority=4)
    side.work(2)
    side.add(
        "job", {"fails": 2, "value": 1}, attempts=3, backoff={"type": "exponential", "delay": 40}
    )
    side.work(3)


@scenario
def retry_later(side: Side) -> None:
    side.add(
        "job", {"fails": 2, "value": 1}, attempts=3, backoff={"type": "fixed", "delay": 60_000}
    )
    side.add("job", {})
    side.work(1)


@scenario
def requeue(side: Side) -> None:
    for name, options in {
        "plain": {},
        "urgent": {"priority": 2},
        "late": {"lifo": True, "attempts": 2},
    }.items():
        side.add("job", {"fails": 9}, jobId=name, **options)
    side.work(3)
    side.add("job", {})
    side.requeue("plain", "late", "urgent")


@scenario
def requeue_worked(side: Side) -> None:
    side.add("job", {"fails": 9}, jobId="mine", attempts=2)
    side.work(1)
    side.queue("pause")
    side.requeue("mine")
    side.queue("resume")
    side.work(2)


@scenario
def requeue_a_child(side: Side) -> None:
    for policy in POLICIES[:3]:
        child = {
            "name": "job",
            "queueName": "mail",
            "data": {"fails": 9},
            "opts": {"jobId": policy, policy: True},
        }
        other = {
            "name": "job",
            "queueName": "mail",
            "data": {},
            "opts": {"jobId": f"other-{policy}", "delay": 60_000},
        }
        options = {"jobId": f"parent-{policy}", "delay": 60_000}
        side.flow(
            {
                "name": "job",
                "queueName": "mail",
                "data": {},
                "opts": options,
                "children": [child, other],
            }
        )
    side.work(3)
    side.requeue(*POLICIES[:3])


@scenario
def failure(side: Side) -> None:
    side.add("job", {"fails": 9}, attempts=2)
    side.add("job", {"fatal": "no such address"}, attempts=5)
    side.add("job", {"fails": 1})
    side.work(3)


@scenario
def removal(side: Side) -> None:
    side.add("job", {}, removeOnComplete=True)
    side.add("job", {"fails": 1}, removeOnFail=True)
    for _ in range(
        3
    ):  # which stay goes by who ends last: none may overtake another on its way to Redis
        side.add("job", {"seconds": 0.05}, removeOnComplete=2)
    for _ in range(3):
        side.add("job", {"seconds": 0.05, "fails": 1}, removeOnFail={"count": 1})
    side.add("job", {}, removeOnComplete={"age": 3600})
    side.work(9)


@scenario
def stall(side: Side) -> None:
    side.add("job", {"value": 1})
    side.abandon()
    side.work(1, stalled_ms=150)


@scenario
def stall_prioritized(side: Side) -> None:
    side.add("job", {"value": 1}, priority=3)
    side.abandon()
    side.work(1, stalled_ms=150)


@scenario
def stall_for_good(side: Side) -> None:
    side.add("job", {"value": 1}, attempts=3)
    side.abandon(stalls=1)
    side.work(1, stalled_ms=150)


def _flow(child: dict[str, Any], **policy: Any) -> dict[str, Any]:
    children = [
        {"name": "job", "queueName": "mail", "data": {"value": 1}},
        {"name": "job", "queueName": "mail", "data": child, "opts": policy},
    ]
    return {"name": "job", "queueName": "parents", "data": {"value": "all"}, "children": children}


@scenario
def flow(side: Side) -> None:
    side.flow(_flow({"value": 2}))


@scenario
def flow_worked(side: Side) -> None:
    side.flow(_flow({"value": 2}))
    side.work(3, "mail", "parents")


@scenario
def flow_of_three_generations(side: Side) -> None:
    tree = _flow({"value": 2})
    tree["opts"] = {"priority": 3}
    tree["children"][0]["children"] = [
        {"name": "job", "queueName": "mail", "data": {}, "opts": {"delay": 50}}
    ]
    side.flow(tree)
    side.work(4, "mail", "parents")


def _known(*ids: str) -> dict[str, Any]:
    children = [
        {"name": "job", "queueName": "mail", "data": {"value": 3}, "opts": {"jobId": each}}
        for each in ids
    ]
    return {
        "name": "job",
        "queueName": "mail",
        "data": {},
        "opts": {"jobId": "parent"},
        "children": children,
    }


@scenario
def flow_with_a_child_that_has_completed(side: Side) -> None:
    side.add("job", {"value": 1}, jobId="done")
    side.work(1)
    side.flow(_known("done", "new"))
    side.work(3)


@scenario
def flow_whose_children_have_all_completed(side: Side) -> None:
    side.add("job", {"value": 1}, jobId="done")
    side.add("job", {"value": 2}, jobId="done-too")
    side.work(2)
    side.flow(_known("done", "done-too"))


@scenario
def flow_with_a_child_that_waits_already(side: Side) -> None:
    side.add("job", {"value": 1}, jobId="there")
    side.flow(_known("there", "new"))


def _failing(policy: str) -> Scenario:
    def failing(side: Side) -> None:
        side.flow(_flow({"fatal": "broken"}, **{policy: True}))
        side.work(3, "mail", "parents")

    return failing


for _policy in POLICIES:
    SCENARIOS[f"flow_with_{_policy}"] = _failing(_policy)


@scenario
def flow_whose_child_fails_without_a_policy(side: Side) -> None:
    side.flow(_flow({"fatal": "broken"}))
    side.work(2, "mail", "parents")


@scenario
def pause(side: Side) -> None:
    side.add("job", {})
    side.queue("pause")
    side.add("job", {})
    side.add("job", {}, priority=1)


@scenario
def pause_and_resume(side: Side) -> None:
    side.queue("pause")
    side.add("job", {})
    side.add("job", {}, priority=1)
    side.queue("resume")
    side.work(2)


@scenario
def deduplication(side: Side) -> None:
    side.add("job", {"a": 1}, deduplication={"id": "one"})
    side.add("job", {"a": 2}, deduplication={"id": "one"})
    side.add("job", {"a": 3}, deduplication={"id": "two", "ttl": 60_000})
    side.add("job", {"a": 4}, deduplication={"id": "two", "ttl": 60_000})
    side.add(
        "job",
        {"a": 5},
        deduplication={"id": "three", "ttl": 60_000, "extend": True, "replace": True},
        delay=60_000,
    )
    side.add(
        "job",
        {"a": 6},
        deduplication={"id": "three", "ttl": 60_000, "extend": True, "replace": True},
        delay=60_000,
    )


@scenario
def deduplication_worked(side: Side) -> None:
    side.add("job", {"a": 1}, deduplication={"id": "one"})
    side.add("job", {"a": 2}, deduplication={"id": "one"})
    side.add("job", {"a": 3}, deduplication={"id": "two", "ttl": 60_000})
    side.work(2)
    side.add("job", {"a": 4}, deduplication={"id": "one"})
    side.add("job", {"a": 5}, deduplication={"id": "two", "ttl": 60_000})


@scenario
def drain(side: Side) -> None:
    side.add("job", {})
    side.add("job", {}, priority=1)
    side.add("job", {}, delay=60_000)
    side.queue("drain")


@scenario
def drain_with_delayed(side: Side) -> None:
    side.add("job", {})
    side.add("job", {}, delay=60_000)
    side.queue("drain", True)


@scenario
def clean(side: Side) -> None:
    for _ in range(3):
        side.add("job", {})
        side.add("job", {"fails": 1})
    side.work(6)
    side.queue("clean", 0, 2, "completed")
    side.queue("clean", 60_000, 0, "failed")
