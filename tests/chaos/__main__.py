"""`make chaos`: attack the whole system for some minutes, and say whether it held what it
promises.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.report import summary, to_data
from tests.chaos.run import Size, run


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Return 0 if all was held."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long the adversary has (1)")
    parser.add_argument(
        "--seed",
        type=int,
        default=None,
        help="what it does follows from it; by chance if not given",
    )
    parser.add_argument(
        "--fires", type=int, default=330, help="fires of recurring jobs in a second (330)"
    )
    parser.add_argument("--jobs", type=int, default=1000, help="submitted jobs in a second (1000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = random.randrange(1_000_000) if given.seed is None else given.seed
    size = Size(seconds=60 * given.minutes, fires=given.fires, rate=given.jobs)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    say(f"seed {seed}; records and log in {folder}")
    outcome = run(seed, size, folder, say)
    say(summary(outcome))
    if given.json is not None:
        given.json.write_text(json.dumps(to_data(outcome), indent=2) + "\n", encoding="utf-8")
    if not outcome.verdict:
        again = (
            f"--minutes {given.minutes:g} --seed {seed} --fires {given.fires} --jobs {given.jobs}"
        )
        say(f'to repeat it: make chaos ARGS="{again}"; records and log are in {folder}')
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
