"""Texts from outside: names that we accept, and foreign text made storable."""

from scheduler.errors import InvalidName

LONGEST_NAME = 200
LONGEST_ERROR = 16_384


def name(value: object, *, what: str) -> str:
    """Check a tenant or job id; `what` is what the error calls it."""
    if not isinstance(value, str):
        raise InvalidName(f"{what} must be a text, not {type(value).__name__}")
    if not 1 <= len(value) <= LONGEST_NAME:
        raise InvalidName(f"{what} must have 1 to {LONGEST_NAME} characters, not {len(value)}")
    if "\0" in value:
        raise InvalidName(f"{what} must not contain NUL: {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidName(f"{what} is not valid Unicode: {value!r}") from error
    return value


def storable(text: str, longest: int = LONGEST_ERROR) -> str:
    """Make any text fit for Postgres: capped first (it may be huge), then NUL and lone surrogates
    escaped.
    """
    head = text[:longest].replace("\0", "\\x00")
    if not head.isascii():
        head = head.encode("utf-8", "backslashreplace").decode()
    if len(head.encode()) > longest:
        head = head.encode()[:longest].decode("utf-8", "ignore")
    return head if len(text) <= longest else head + f" [cut from {len(text)} characters]"
