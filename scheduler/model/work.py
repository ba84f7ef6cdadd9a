"""What the fires of a registered job submit, with `queue=`, instead of calling a function."""

import base64
import json
from dataclasses import dataclass
from typing import Any

from scheduler.model.labels import Priority, checked_queue
from scheduler.model.payloads import Form
from scheduler.model.policies import RETRY, TIMEOUTS, Timeouts, policy_json, policy_of
from scheduler.model.retries import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What each fire of a registered job submits, with `queue=`, instead of calling a function."""

    queue: str
    type: str
    priority: Priority = Priority.NORMAL
    form: Form = "json"
    payload: bytes = b"null"
    retry: RetryPolicy = RETRY
    timeouts: Timeouts = TIMEOUTS

    def to_data(self) -> dict[str, object]:
        """Write it as data; what is as it is by default is left out."""
        policy = policy_json(self.retry, self.timeouts)
        values: dict[str, object] = {
            "queue": self.queue,
            "type": self.type,
            "priority": None if self.priority is Priority.NORMAL else int(self.priority),
            "json": self.payload.decode()
            if self.form == "json" and self.payload != b"null"
            else None,
            "bytes": base64.b64encode(self.payload).decode() if self.form == "bytes" else None,
            "policy": None if policy is None else json.loads(policy),
        }
        return {key: value for key, value in values.items() if value is not None}

    @classmethod
    def of_data(cls, data: dict[str, Any]) -> "Work":
        """Read what `to_data` wrote."""
        retry, timeouts = policy_of(data.get("policy"))
        binary = data.get("bytes")
        return cls(
            queue=checked_queue(data["queue"]),
            type=data["type"],
            priority=Priority(data.get("priority", Priority.NORMAL)),
            form="json" if binary is None else "bytes",
            payload=data.get("json", "null").encode()
            if binary is None
            else base64.b64decode(binary),
            retry=retry,
            timeouts=timeouts,
        )
