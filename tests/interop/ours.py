"""A worker of ours as a process of its own: what jobs ask for is in sides.py. It ends when its
standard input does.
"""

import sys
from datetime import timedelta

from tests.interop.sides import working


def main(url: str, queue: str) -> None:
    """Work until told otherwise."""
    with working(url, queue, stalled_ms=300, lease=timedelta(seconds=1), concurrency=5):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
