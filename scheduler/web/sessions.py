"""Sessions of people who log in with a token: a signed cookie, and a token against forged forms. Gone at a restart."""

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
    """Makes and reads the cookie. It lets one read through the API, and never write: forms of ours need `csrf`."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._key = secrets.token_bytes(32)

    def begin(self, request: HTTPConnection, response: Response, token: str) -> Caller:
        """Log in: give the cookie to whoever shows a token."""
        caller = self._access.holder(token)
        if caller is None:
            raise Problem("unauthorized", "the token is not known")
        name = base64.urlsafe_b64encode(caller.name.encode()).decode()
        said = f"{name}.{int(time.time()) + LASTS}.{secrets.token_urlsafe(16)}"
        response.set_cookie(
            COOKIE,
            f"{said}.{self._signed(said)}",
            max_age=LASTS,
            path=request.scope.get("root_path", "") or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return caller

    def end(self, request: HTTPConnection, response: Response) -> None:
        """Log out."""
        response.delete_cookie(COOKIE, path=request.scope.get("root_path", "") or "/")

    def caller(self, request: HTTPConnection) -> Caller | None:
        """Return who is logged in."""
        said, _, signature = request.cookies.get(COOKIE, "").rpartition(".")
        if not hmac.compare_digest(self._signed(said).encode(), signature.encode("utf-8", "replace")):
            return None
        name, expires, _ = said.split(".")
        if int(expires) < time.time():
            return None
        return self._access.named(base64.urlsafe_b64decode(name).decode())

    def csrf(self, request: HTTPConnection) -> str:
        """Make what the forms of a page carry, so that no other page can have made them."""
        return self._signed(f"csrf:{request.cookies.get(COOKIE, '')}")

    def check_csrf(self, request: HTTPConnection, given: str) -> None:
        """Refuse a form that is not of a page of ours."""
        expected = self.csrf(request).encode()
        if not same_origin(request) or not hmac.compare_digest(expected, given.encode("utf-8", "replace")):
            raise Problem("forbidden", "this form is of a page that is too old, or not ours; load the page again")

    def _signed(self, said: str) -> str:
        return hmac.new(self._key, said.encode("utf-8", "replace"), "sha256").hexdigest()
