"""What the jobs do. One that uses Django's database calls `close_old_connections()` first, as each
request does.
"""

import os
from pathlib import Path

import scheduler


def heartbeat(ctx: scheduler.RunContext) -> None:
    with Path(os.environ.get("EXAMPLE_LOG", os.devnull)).open("a") as log:
        log.write(f"{os.getpid()} {ctx.fire_at.isoformat()}\n")
