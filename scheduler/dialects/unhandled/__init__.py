"""The delay of a job that is returned because its worker has no handler for its type.

Foreign workers share the queues of `reliable`, `bullmq` and `conveyor`, so no script knows which
types exist, and such a job is leased before its worker sees the type. The scripts of these dialects
count the returns of a job (`lua/delay.lua`).
"""

FIRST_DELAY_MS = 1000
MAX_DELAY_MS = 60_000


def return_delay_ms(returns: int) -> int:
    """Return the delay of a job that was returned so many times before."""
    return min(FIRST_DELAY_MS << min(returns, 6), MAX_DELAY_MS)
