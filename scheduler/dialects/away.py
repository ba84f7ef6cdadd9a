"""What Redis says, or a connection to it, while it is away and may come back by itself; how that is
told.
"""

import ssl

from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    ConnectionError,  # noqa: A004
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    TimeoutError,  # noqa: A004
    TryAgainError,
)

AWAY = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    MasterDownError,
    ClusterDownError,
    ClusterError,
    RedisClusterException,
    TryAgainError,
    OutOfMemoryError,
)
ALSO_AWAY = (
    "UNBLOCKED",
    "BUSY ",
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOREPLICAS",
    "OOM",
    "MISCONF",
)


def told(error: BaseException) -> str:
    """Write an error so that a sentence can go on behind it."""
    return f"Redis: {error}".removesuffix(".")


def distrusted(error: BaseException | None) -> bool:
    """Whether it began with a certificate that does not hold."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None
