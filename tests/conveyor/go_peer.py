"""A worker of Conveyor in Go, as far as Redis sees it: simulated from what is known of its life,
its bugs included.

Each comment quotes the fact that the lines below it obey. It imports nothing of ours. `python -m
tests.conveyor.go_peer URL QUEUE PRUNE_EVERY`: what it does in its handlers is in
`tests.conveyor.work`.
"""

import os
import sys
import time
from typing import Any

import redis

from tests.conveyor.encoder import decode, remarshal
from tests.conveyor.work import Fails, work

NAMESPACE = "conv"  # As known: "namespace `conv`"
UUID, QUEUE, PAYLOAD, RUN_AT, PARENT, PREDECESSOR, RETRY, MAX_RETRIES, STATUS = (
    1,
    3,
    4,
    5,
    6,
    7,
    9,
    10,
    12,
)


def key(*parts: str) -> str:
    return ":".join([NAMESPACE, *parts])


class Peer:
    def __init__(self, url: str, queue: str, prune_every: float) -> None:
        self.redis: Any = redis.Redis.from_url(url, protocol=2)
        self.url = url
        self.name = f"go-{os.getpid()}"
        self.queue = queue
        self.prune_every = prune_every
        self.due = {
            self.heartbeat: 0.0,
            self.pop_scheduled: 0.0,
            self.prune: time.time() + prune_every,
        }

    def run(self) -> None:
        # As known: "Heartbeat: ZADD workers:active every 15 s. Every worker every 30 s prunes";
        # "Every 1 s"
        periods = {self.heartbeat: 15.0, self.pop_scheduled: 1.0, self.prune: self.prune_every}
        while True:
            for what, moment in self.due.items():
                if time.time() >= moment:
                    self.due[what] = time.time() + periods[what]
                    what()
            self.work_one()

    def work_one(self) -> None:
        raw = self.pop()
        if raw is None:
            return
        fields = decode(raw)
        uuid = fields[UUID].decode()
        self.say(raw, 2)
        try:
            work(self.url, "go", uuid, fields.get(PAYLOAD, b""))
        except Fails:
            self.fail(uuid)
        else:
            self.say(raw, 3)
            self.close(raw)

    def pop(self) -> bytes | None:
        # As known: "Pop: ZADD queues:active (async)"
        self.redis.zadd(key("queues", "active"), {self.queue: int(time.time())})
        # As known: "-> BRPOP over all registered queues"; "BRPOP timeout 2 s", here less, so that
        # one thread can do all
        popped = self.redis.brpop([key("queue", self.queue)], timeout=0.2)
        if popped is None:
            return None
        raw: bytes = popped[1]
        uuid = decode(raw)[UUID].decode()
        # As known: "-> SET job key (no TTL)"
        self.redis.set(key("job", uuid), raw)
        # As known: "-> SADD worker:active"
        self.redis.sadd(key("worker", "active", self.name), uuid)
        # As known: "-> SADD jobs:active. 4 commands, not atomic."
        self.redis.sadd(key("jobs", "active"), uuid)
        return raw

    def add(self, raw: bytes, *, dead_parent: bool) -> None:
        fields = decode(raw)
        parent, predecessor = (
            fields.get(PARENT, b"").decode(),
            fields.get(PREDECESSOR, b"").decode(),
        )
        run_at = decode(fields.get(RUN_AT, b"")).get(1, 0)
        # As known: "Add order of precedence: parent (alive) -> children list"
        if parent and not dead_parent:
            self.redis.lpush(key("job", parent, "children"), raw)
        # As known: "else predecessor -> onComplete list"
        elif predecessor and not dead_parent:
            self.redis.lpush(key("job", predecessor, "onComplete"), raw)
        # As known: "else run_at in future -> ZADD"
        elif run_at > time.time():
            self.redis.zadd(key("scheduled"), {raw: run_at})
        # As known: "else [SADD parent active] + LPUSH queue"
        else:
            if parent:
                self.redis.sadd(key("job", parent, "active"), fields[UUID])
            self.redis.lpush(key("queue", fields[QUEUE].decode()), raw)

    def close(self, raw: bytes) -> None:
        fields = decode(raw)
        uuid = fields[UUID].decode()
        # As known: "CloseJob(job): SREM worker set"
        self.redis.srem(key("worker", "active", self.name), uuid)
        # As known: "RPOP each child -> add(deadParent=true)"
        any_child = False
        while (child := self.redis.rpop(key("job", uuid, "children"))) is not None:
            any_child = True
            self.add(child, dead_parent=True)
        # As known: "if any child existed stop"; "if SCARD(active)>0 stop"
        if any_child or self.redis.scard(key("job", uuid, "active")) > 0:
            return
        # As known: "RPOP each onComplete -> add(deadParent=true)"
        while (heir := self.redis.rpop(key("job", uuid, "onComplete"))) is not None:
            self.add(heir, dead_parent=True)
        # As known: "if job has parent: SREM uuid from parent's active set, GET parent body,
        # CloseJob(parent)"
        if parent := fields.get(PARENT, b"").decode():
            self.redis.srem(key("job", parent, "active"), uuid)
            body = self.redis.get(key("job", parent))
            if body is not None:
                self.close(body)
        # As known: "SREM jobs:active; hist success; DEL job key"
        self.redis.srem(key("jobs", "active"), uuid)
        self.redis.incr(key("hist", "success", time.strftime("%Y-%m-%d_%H:%M")))
        self.redis.delete(key("job", uuid))

    def fail(self, uuid: str) -> None:
        body = self.redis.get(key("job", uuid))
        if body is None:
            return
        fields = decode(body)
        # As known: "FailJob(uuid): retry++"
        fields[RETRY] = fields.get(RETRY, 0) + 1
        raw = remarshal(fields)
        # As known: "non-transactional pipeline: DEL job key, DEL onComplete list, DEL children
        # list, SREM jobs:active"
        pipe = self.redis.pipeline(transaction=False)
        pipe.delete(key("job", uuid))
        pipe.delete(key("job", uuid, "onComplete"))
        pipe.delete(key("job", uuid, "children"))
        pipe.srem(key("jobs", "active"), uuid)
        # Known of Conveyor: retry >= max_retries is pushed to `failed`, anything else scheduled in
        # 2 s; a max_retries of 0 is the default, 3.
        if fields[RETRY] >= (fields.get(MAX_RETRIES, 0) or 3):
            pipe.lpush(key("failed"), raw)
        else:
            pipe.zadd(key("scheduled"), {raw: int(time.time()) + 2})
        # As known: "FailJob never SREMs worker:active"
        pipe.execute()
        self.say(raw, 4)

    def heartbeat(self) -> None:
        # As known: "ZADD workers:active"
        self.redis.zadd(key("workers", "active"), {self.name: int(time.time())})

    def pop_scheduled(self) -> None:
        # As known: "ZRANGEBYSCORE then ZREM ignoring the count"
        for raw in self.redis.zrangebyscore(key("scheduled"), "-inf", int(time.time())):
            self.redis.zrem(key("scheduled"), raw)
            # As known: "FailJob -> scheduled -> add(deadParent=false)"
            self.add(raw, dead_parent=False)

    def prune(self) -> None:
        # As known: "prunes workers with score <= now-30 s"
        for name in self.redis.zrangebyscore(
            key("workers", "active"), "-inf", int(time.time()) - 30
        ):
            held = key("worker", "active", name.decode())
            # As known: "SPOP each uuid -> RestartJob"
            while (uuid := self.redis.spop(held)) is not None:
                body = self.redis.get(key("job", uuid.decode()))
                # As known: "later prune hits a missing body, returns an error and aborts that pass"
                if body is None:
                    return
                # As known: "RestartJob = GET body, DEL body/onComplete/children, SREM active, LPUSH
                # queue"
                for what in ((), ("onComplete",), ("children",)):
                    self.redis.delete(key("job", uuid.decode(), *what))
                self.redis.srem(key("jobs", "active"), uuid)
                self.redis.lpush(key("queue", decode(body)[QUEUE].decode()), body)
            self.redis.zrem(key("workers", "active"), name)

    def say(self, raw: bytes, status: int) -> None:
        # As known: "PUB/SUB channel, message = Job bytes with status set"
        self.redis.publish(key("events"), remarshal({**decode(raw), STATUS: status}))


if __name__ == "__main__":
    Peer(sys.argv[1], sys.argv[2], float(sys.argv[3])).run()
