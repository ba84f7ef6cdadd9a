"""A process that submits many jobs and ends at once, without a word to its scheduler."""

import sys

from scheduler import NewJob, Scheduler
from tests.support.waiting import wait_for


def main(dsn: str, schema: str, url: str) -> None:
    """Wait until jobs may go straight into Redis, submit some, and print their ids."""
    made = Scheduler(dsn, schema=schema, redis=url).start()
    shortcut = made._shortcut()
    assert shortcut is not None
    wait_for(lambda: "mail" in shortcut._marks, "the way is open")
    many = made.submit_many([NewJob("acme", "job", number, queue="mail") for number in range(1000)])
    sys.stdout.write("\n".join(str(each.id) for each in many))


if __name__ == "__main__":
    main(*sys.argv[1:])
