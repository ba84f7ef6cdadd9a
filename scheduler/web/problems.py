"""What goes wrong, as a caller sees it: one shape, with a code for programs and a cure for
people.
"""

from http import HTTPStatus

from scheduler.errors import (
    ConfigError,
    Conflict,
    IllegalTransition,
    LifecycleError,
    QueueUnavailable,
    RegistrationError,
    SchedulerError,
    StoreUnavailable,
    SubmissionError,
    TenantDeleting,
    UnknownJob,
    UnknownQueue,
)

LONGEST = 1000
CODES: dict[str, tuple[int, str]] = {
    "invalid_request": (400, "send what the OpenAPI document describes; it is at openapi.json"),
    "unauthorized": (401, "send a token that is configured: Authorization: Bearer ..."),
    "forbidden": (403, "use a token that has this scope and this tenant"),
    "not_found": (404, "look at the id and at the tenant; a list has those that exist"),
    "method_not_allowed": (405, "use one of the methods in the header Allow"),
    "conflict": (409, "look at the state that it is in now"),
    "not_configured": (409, "configure what is missing, and start the process again"),
    "too_large": (413, "send less at once; store large data elsewhere, and submit its key"),
    "unsupported_media_type": (415, "send JSON, with Content-Type: application/json"),
    "refused": (422, "change what the message names"),
    "rate_limited": (429, "wait for as long as the header Retry-After says"),
    "busy": (429, "close other streams and waits of this token, or try again later"),
    "internal_error": (500, "look for the request_id in the log of the server"),
    "unavailable": (503, "try again later: Postgres or Redis is away"),
}
RETRY_AFTER = {"unavailable": 2, "busy": 2}
_CODE_OF: tuple[tuple[type[SchedulerError], str], ...] = (
    (UnknownJob, "not_found"),
    (UnknownQueue, "not_found"),
    (RegistrationError, "refused"),
    (SubmissionError, "refused"),
    (IllegalTransition, "conflict"),
    (TenantDeleting, "conflict"),
    (StoreUnavailable, "unavailable"),
    (QueueUnavailable, "unavailable"),
    (Conflict, "unavailable"),
    (LifecycleError, "unavailable"),
    (ConfigError, "not_configured"),
)


class Problem(Exception):
    """A request that is not answered as it was meant; `code` is one of CODES."""

    def __init__(self, code: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status, self.cure = CODES[code]
        self.message = message.encode("utf-8", "backslashreplace").decode()[:LONGEST]
        self.retry_after = RETRY_AFTER.get(code) if retry_after is None else retry_after

    def body(self, request_id: str) -> dict[str, object]:
        """Say it as RFC 9457 has it, with members of our own."""
        return {
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "message": self.message,
            "cure": self.cure,
            "request_id": request_id,
        }


def problem_of(error: SchedulerError) -> Problem | None:
    """Say what an error of ours means to a caller; None: it is not theirs, and nothing that
    passes.
    """
    code = next((code for kind, code in _CODE_OF if isinstance(error, kind)), None)
    return None if code is None else Problem(code, str(error))
