"""Posting: one HTTP request to an address that was checked, with a deadline on the whole of it.

A name is resolved once, every address it has is checked, and the connection goes to one of those:
what a name server says a moment later (DNS rebinding) changes nothing. Redirects are not followed.
"""

import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any, NamedTuple, cast
from urllib.parse import SplitResult, quote, urlsplit

TIMEOUT = 10.0
LONGEST_ANSWER = 64 * 1024
CHUNK = 64 * 1024
PORTS = {"http": 80, "https": 443}
UNICAST = IPv6Network("2000::/3")  # all of IPv6 that is given to anybody
_PLAIN = "/%:?&=+,;@!$'()*~[]-._|"


class Refused(Exception):
    """It may not be posted there, now or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the receiver said."""

    status: int
    location: str | None
    retry_after: str | None


class Address(NamedTuple):
    """Where a name leads: the family of the socket, and what it connects to."""

    family: int
    place: Any


class Deadline:
    """The moment, of the monotonic clock, at which a request is cut off."""

    def __init__(self, moment: float) -> None:
        self._moment = moment

    def left(self, most: float = TIMEOUT) -> float:
        """Return how long the next wait may be."""
        left = self._moment - time.monotonic()
        if left <= 0:
            raise TimeoutError("it took longer than it may")
        return min(left, most)


def post(
    url: str, headers: Mapping[str, str], body: bytes, *, private: bool, deadline: Deadline
) -> Answer:
    """Post; raises `Refused`, or an OSError or HTTPException if there is no answer. `private`: any
    address will do.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise Refused(f"its URL cannot be read: {error}") from None
    if not host or not port or "@" in parts.netloc:
        raise Refused(
            "its URL must begin with http:// or https://, name a host, and contain no user"
        )
    addresses = resolve(host, port)
    for address in addresses:
        if not private and not is_public(str(address.place[0])):
            raise Refused(
                f"{host} leads to {address.place[0]}, which is not a public address; see "
                "callback_private"
            )
    opened = _open(addresses, deadline)
    try:
        if parts.scheme == "https":
            opened.settimeout(deadline.left())
            opened = _tls().wrap_socket(opened, server_hostname=host)
        return _exchange(_Bounded(opened, deadline), parts, headers, body)
    finally:
        opened.close()


def resolve(host: str, port: int) -> list[Address]:
    """Ask once where a name leads."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except UnicodeError as error:
        raise Refused(f"its host is no name: {error}") from None
    return [Address(family, place) for family, _, _, _, place in found]


def is_public(text: str) -> bool:
    """Whether an address belongs to the whole Internet, also the one that is wrapped in an IPv6
    address.
    """
    address = ip_address(text)
    if isinstance(address, IPv6Address):
        teredo = address.teredo
        wrapped = [address.ipv4_mapped, address.sixtofour, *(teredo or ())]
        if any(each is not None and not _is_public(each) for each in wrapped):
            return False
        if address.ipv4_mapped is not None:
            return True
    return _is_public(address)


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and address not in UNICAST:
        return False
    odd = (
        address.is_private or address.is_loopback or address.is_link_local or address.is_unspecified
    )
    return address.is_global and not (odd or address.is_multicast or address.is_reserved)


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _open(addresses: list[Address], deadline: Deadline) -> socket.socket:
    """Connect to the first address that lets us; each has its share of the time."""
    most = deadline.left()
    failed: OSError = OSError("its name leads nowhere")
    for address in addresses:
        try:
            return _connected(address, deadline.left(most / len(addresses)))
        except OSError as error:
            failed = error
    raise failed


def _connected(address: Address, timeout: float) -> socket.socket:
    opened = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        opened.settimeout(timeout)
        opened.connect(address.place)
    except BaseException:
        opened.close()
        raise
    return opened


def _exchange(
    bounded: "_Bounded", parts: SplitResult, headers: Mapping[str, str], body: bytes
) -> Answer:
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or PORTS[parts.scheme])
    connection.default_port = PORTS[parts.scheme]  # else its Host header names the port
    connection.auto_open = 0
    connection.sock = cast("Any", bounded)
    target = quote(parts.path or "/", safe=_PLAIN) + (
        f"?{quote(parts.query, safe=_PLAIN)}" if parts.query else ""
    )
    connection.request("POST", target, body, {**headers, "Connection": "close"})
    response = connection.getresponse()
    with suppress(OSError, http.client.HTTPException):  # it has answered; the rest is politeness
        response.read(LONGEST_ANSWER)
    response.close()
    return Answer(
        status=response.status,
        location=response.headers["Location"],
        retry_after=response.headers["Retry-After"],
    )


class _Bounded:
    """What `http.client` needs of a socket, none of whose waits goes past the deadline."""

    def __init__(self, opened: socket.socket, deadline: Deadline) -> None:
        self._socket = opened
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._socket.settimeout(self._deadline.left())
            rest = rest[self._socket.send(rest[:CHUNK]) :]

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._socket, self._deadline))

    def close(self) -> None:
        """Leave that to whoever opened it: `http.client` closes it before the answer is read."""


class _Reader(io.RawIOBase):
    def __init__(self, opened: socket.socket, deadline: Deadline) -> None:
        self._socket = opened
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._socket.settimeout(self._deadline.left())
        return self._socket.recv_into(buffer)
