"""Who may do what: tokens, of which only hashes are known, their scopes and tenants, and how often
each may ask.
"""

import hashlib
import hmac
import ipaddress
import re
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from scheduler.errors import ConfigError
from scheduler.model.texts import LONGEST_NAME
from scheduler.web.problems import Problem

if TYPE_CHECKING:  # the configuration is read without the extra too
    from starlette.requests import HTTPConnection

READ, WRITE, PAYLOADS = SCOPES = ("read", "write", "payloads")
KEYS = ("sha256", "scopes", "tenants")
ALL = "all"
BURST = 2.0  # seconds' worth of requests that may come at once
SAFE = ("GET", "HEAD")
PROXIES = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as it is configured; `tenants` None: of all, and of what they share."""

    name: str
    sha256: str
    scopes: frozenset[str]
    tenants: frozenset[str] | None

    @classmethod
    def of(cls, name: str, said: object) -> Self:
        """Read a token out of a configuration; what is wrong is not repeated: it may be the token
        itself.
        """
        given = said if isinstance(said, Mapping) else {}
        sha256, scopes, tenants = (given.get(key) for key in KEYS)
        wrong = (
            [f"there is no such key; there are {', '.join(KEYS)}"] if set(given) - set(KEYS) else []
        )
        if not isinstance(sha256, str) or not re.fullmatch("[0-9a-f]{64}", sha256):
            wrong.append(
                "sha256 must be the 64 hex digits that `scheduler web-token` prints, never the "
                "token itself"
            )
        if (
            not isinstance(scopes, list | tuple)
            or not scopes
            or not set(map(str, scopes)) <= set(SCOPES)
        ):
            wrong.append(f"scopes must be a list of {', '.join(SCOPES)}")
        if tenants != ALL and not (
            isinstance(tenants, list | tuple) and tenants and all(map(_named, tenants))
        ):
            wrong.append(f"tenants must be a list of names, or {ALL}")
        if wrong:
            raise ConfigError(f"{name!r}: {'; '.join(wrong)}")
        bound = None if tenants == ALL else frozenset(map(str, tenants or ()))
        return cls(
            name=name, sha256=str(sha256), scopes=frozenset(map(str, scopes or ())), tenants=bound
        )

    def plain(self) -> dict[str, object]:
        """Write it as a configuration has it."""
        tenants = ALL if self.tenants is None else sorted(self.tenants)
        return {"sha256": self.sha256, "scopes": sorted(self.scopes), "tenants": tenants}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks."""

    name: str
    scopes: frozenset[str]
    tenants: frozenset[str] | None

    def needs(self, scope: str) -> None:
        """Refuse a caller without a scope."""
        if scope not in self.scopes:
            raise Problem("forbidden", f"{self.name} has not the scope {scope!r}")

    def tenant(self, wanted: str | None) -> str:
        """Return the tenant that is meant; without a name, the only one of the caller."""
        if wanted is None:
            if self.tenants is None or len(self.tenants) != 1:
                raise Problem(
                    "refused", "tenant: name one; only a token of one tenant may leave it out"
                )
            return next(iter(self.tenants))
        if self.tenants is not None and wanted not in self.tenants:
            raise Problem("forbidden", f"{self.name} has not the tenant {wanted!r}")
        return wanted

    def needs_all_tenants(self) -> None:
        """Refuse a caller that is bound to tenants: what is asked for belongs to all of them."""
        if self.tenants is not None:
            raise Problem(
                "forbidden", f"{self.name} is bound to tenants, and this belongs to all of them"
            )


LOCAL = Caller(name="local", scopes=frozenset(SCOPES), tenants=None)


def minted() -> str:
    """Make a token."""
    return f"scheduler_{secrets.token_urlsafe(32)}"


def hashed(token: str) -> str:
    """Write what the configuration knows of a token; its 256 random bits need no slower hash."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class Access:
    """Tells who asks; without tokens that is whoever is on this machine."""

    def __init__(self, tokens: Sequence[Token], rate_limit: int) -> None:
        self._tokens = tuple(tokens)
        self._rate = rate_limit
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}

    @property
    def open(self) -> bool:
        """Whether there are no tokens."""
        return not self._tokens

    def named(self, name: str) -> Caller | None:
        """Return the caller of that name."""
        return next((_caller(each) for each in self._tokens if each.name == name), None)

    def holder(self, token: str) -> Caller | None:
        """Return whose token it is; looks at all of them, however soon one fits."""
        digest, found = hashed(token), None
        for each in self._tokens:
            if hmac.compare_digest(each.sha256, digest):
                found = _caller(each)
        return found

    def bearer(self, request: "HTTPConnection") -> Caller | None:
        """Return who asks by the header Authorization, if it is there; raises if it is not
        right.
        """
        given = request.headers.get("authorization")
        if given is None:
            return None
        kind, _, token = given.partition(" ")
        found = self.holder(token.strip()) if kind.lower() == "bearer" else None
        if found is None:
            raise Problem("unauthorized", "the token is not known")
        return found

    def local(self, request: "HTTPConnection") -> Caller | None:
        """Return the caller on this machine, where there are no tokens.

        A page of elsewhere, in a browser on this machine, is not it: its name in Host, or where it
        is from, tells. It may have a link to us.
        """
        if not self.open or not _on_this_machine(request):
            return None
        looks = (
            request.scope["method"] in SAFE
            and request.headers.get("sec-fetch-mode", "navigate") == "navigate"
        )
        return LOCAL if looks or same_origin(request) else None

    def spend(self, caller: Caller) -> None:
        """Count a request; refuse it if there were too many."""
        if not self._rate:
            return
        now, most = time.monotonic(), max(1.0, self._rate * BURST)
        with self._lock:
            left, at = self._buckets.get(caller.name, (most, now))
            left = min(most, left + (now - at) * self._rate)
            self._buckets[caller.name] = (left - 1 if left >= 1 else left, now)
        if left < 1:
            raise Problem(
                "rate_limited",
                f"{caller.name} may ask {self._rate} times a second",
                retry_after=(1 - left) / self._rate,
            )


def same_origin(request: "HTTPConnection") -> bool:
    """Whether a browser says that the request is of a page of ours, or no browser says anything."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    try:
        return origin is None or urlsplit(origin).netloc == request.headers.get("host")
    except ValueError:
        return False


def loopback(host: str | None) -> bool:
    """Whether a host is this machine."""
    if host == "localhost":
        return True
    try:
        return host is not None and ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _on_this_machine(request: "HTTPConnection") -> bool:
    client, headers = request.client, request.headers
    if client is None or not loopback(client.host) or any(each in headers for each in PROXIES):
        return False
    try:
        return loopback(urlsplit(f"//{headers.get('host', '')}").hostname)
    except ValueError:
        return False


def _named(tenant: object) -> bool:
    return isinstance(tenant, str) and 1 <= len(tenant) <= LONGEST_NAME


def _caller(token: Token) -> Caller:
    return Caller(name=token.name, scopes=token.scopes, tenants=token.tenants)
