"""Redis URLs with other credentials."""

import re


def with_credentials(url: str, username: str, password: str) -> str:
    """Return a Redis URL with this username and password instead of its own, if it has any."""
    return re.sub(r"//(?:[^@/]*@)?", f"//{username}:{password}@", url, count=1)
