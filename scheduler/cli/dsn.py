"""DSNs without their passwords, for screens and messages."""

import re
from urllib.parse import parse_qsl, unquote, urlsplit

HIDDEN = "***"
_KEYWORD = re.compile(
    r"\b(?:(?:ssl|sentinel_)?password)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|([^\s&]+))", re.IGNORECASE
)


def without_secrets(text: str, dsn: str | None) -> str:
    """Hide the passwords of a DSN in a text that may quote it, whole or in part."""
    if dsn is None:
        return text
    for secret in sorted(_secrets(dsn), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def place(dsn: str) -> str:
    """Say where a DSN leads: host, port and database, and nothing else of it."""
    host: str
    port: str | int | None
    if "://" not in dsn:
        words = dict(re.findall(r"\b(host|port|dbname)\s*=\s*'?([^\s']+)", dsn))
        host, port, name = (
            words.get("host", "localhost"),
            words.get("port"),
            words.get("dbname", ""),
        )
    else:
        try:
            parts = urlsplit(dsn)
            asked = dict(parse_qsl(parts.query))
            host, port = (
                parts.hostname or asked.get("host", "localhost"),
                parts.port or asked.get("port"),
            )
            name = parts.path.strip("/")
        except ValueError:
            return "the given database"
    return without_secrets(f"{host}{f':{port}' if port else ''}/{name}", dsn)


def _secrets(dsn: str) -> set[str]:
    found = {first or second for first, second in _KEYWORD.findall(dsn)}
    # Up to the last @: a password with an @ that nobody has escaped is the likeliest of wrong DSNs.
    user = re.sub(r"^[\w+.-]*:?//", "", dsn).rpartition("@")[0]
    password = user.partition(":")[2]
    found |= {password, *re.split(r"[@:/#]", password)}
    found |= {unquote(secret) for secret in found}
    return {secret for secret in found if secret}
