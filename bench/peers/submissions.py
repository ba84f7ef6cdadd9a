"""What every peer of bench/submit.py does, once it has said how it submits.

single N         submit N jobs one by one, each committed by itself
inside N         N transactions of a caller's: a row of its own, a job, commit
many BATCHES N   BATCHES calls for N jobs each

All print the seconds; the first few calls, which connect and prepare, are not counted.
"""

import time

from commands import main

WARM = 20
ORDERS = "CREATE TABLE IF NOT EXISTS orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text NOT NULL)"
ORDER = "INSERT INTO orders (note) VALUES ('a row of the caller')"


def payload(number):
    return {
        "number": number,
        "address": "somebody@example.com",
        "subject": "Your order is on its way",
    }


def counted(one, count, warm=WARM):
    """Time `count` calls of one(number)."""
    for number in range(warm):
        one(number)
    start = time.perf_counter()
    for number in range(count):
        one(number)
    return {"seconds": time.perf_counter() - start}


async def acounted(one, count, warm=WARM):
    """Time `count` calls of an async one(number)."""
    for number in range(warm):
        await one(number)
    start = time.perf_counter()
    for number in range(count):
        await one(number)
    return {"seconds": time.perf_counter() - start}


def run(package, commands):
    """Run the command of sys.argv; its arguments are numbers, or names."""
    named = {
        name: lambda *given, do=do: do(*(int(each) if each.isdigit() else each for each in given))
        for name, do in commands.items()
    }
    main(package, named)
