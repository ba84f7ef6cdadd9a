"""Sessions of people who log in with a token: a signed cookie, and a token against forged forms.
Gone at a restart.
"""

import base64
import hmac
import secrets
import time

from starlette.requests import HTTPConnection
from starlette.responses import Response

from scheduler.web.access import Access, Caller, same_origin
from scheduler.web.problems import Problem

COOKIE = "scheduler_session"
LASTS = 12 * 3600


class Sessions:
    """Makes and reads the cookie. It lets one read through the API, and never write: forms of ours
    need `csrf`.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._key = secrets.token_bytes(32)
        self._ended: dict[str, int] = {}

    def begin(self, request: HTTPConnection, response: Response, token: str) -> Caller:
        """Log in: give the cookie to whoever shows a token."""
        caller = self._access.holder(token)
        if caller is None:
            raise Problem("unauthorized", "the token is not known")
        name = base64.urlsafe_b64encode(caller.name.encode()).decode()
        said = f"{name}.{int(time.time()) + LASTS}.{secrets.token_urlsafe(16)}"
        response.set_cookie(
            COOKIE,
            f"{said}.{self._signed('session', said)}",
            max_age=LASTS,
            path=request.scope.get("root_path", "") or "/",
            secure="https" in (request.url.scheme, request.headers.get("x-forwarded-proto")),
            httponly=True,
            samesite="strict",
        )
        return caller

    def end(self, request: HTTPConnection, response: Response) -> None:
        """Log out: whoever else has the cookie is out too."""
        said = self._said(request)
        if said is not None:
            now = time.time()
            self._ended = {each: expires for each, expires in self._ended.items() if expires > now}
            self._ended[said] = int(said.split(".")[1])
        response.delete_cookie(COOKIE, path=request.scope.get("root_path", "") or "/")

    def caller(self, request: HTTPConnection) -> Caller | None:
        """Return who is logged in."""
        said = self._said(request)
        if said is None or said in self._ended:
            return None
        name, expires, _ = said.split(".")
        return (
            None
            if int(expires) < time.time()
            else self._access.named(base64.urlsafe_b64decode(name).decode())
        )

    def csrf(self, request: HTTPConnection) -> str:
        """Make what the forms of a page carry, so that no other page can have made them."""
        return self._signed("form", request.cookies.get(COOKIE, ""))

    def check_csrf(self, request: HTTPConnection, given: str) -> None:
        """Refuse a form that is not of a page of ours."""
        expected = self.csrf(request).encode()
        if not same_origin(request) or not hmac.compare_digest(
            expected, given.encode("utf-8", "replace")
        ):
            raise Problem(
                "forbidden",
                "this form is of a page that is too old, or not ours; load the page again",
            )

    def _said(self, request: HTTPConnection) -> str | None:
        """Read what the cookie says, if it was signed here."""
        said, _, signature = request.cookies.get(COOKIE, "").rpartition(".")
        expected = self._signed("session", said).encode()
        return said if hmac.compare_digest(expected, signature.encode("utf-8", "replace")) else None

    def _signed(self, use: str, said: str) -> str:
        """Sign for one use: anybody may have any text signed for a form, and none of these is a
        session.
        """
        return hmac.new(self._key, f"{use} {said}".encode("utf-8", "replace"), "sha256").hexdigest()
