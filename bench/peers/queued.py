"""What every peer of bench/redis.py and bench/ring.py does, once it has said how it sends and how it works.

single N         send N jobs one by one
many BATCHES N   BATCHES calls for N jobs each, if the peer has such a call
pickup N         send a job, wait until it has started, rest a little, and again; when each call began and ended
serve            print "ready" and work, until killed

A job carries a number, from 0, and stamps it. The first calls, which connect and prepare, are not timed; their jobs
count as sent. queued.mjs is the same for Node.
"""

import asyncio
import inspect
import os
import random
import time

from commands import STAMPS, main

WARM = 20
PATIENCE = 10.0


async def _done(found):
    return await found if inspect.isawaitable(found) else found


def _run(coroutine):
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)


async def _single(connect, send, count):
    context = await _done(connect())
    for number in range(WARM):
        await _done(send(context, number))
    began, start, cpu = time.time(), time.perf_counter(), time.process_time()
    for number in range(WARM, WARM + count):
        await _done(send(context, number))
    return {"seconds": time.perf_counter() - start, "began": began, "cpu": time.process_time() - cpu,
            "timed": count, "sent": WARM + count}  # fmt: skip


async def _many(connect, send_many, close, batches, size):
    context = await _done(connect())
    await _done(send_many(context, range(size)))
    began, start, cpu = time.time(), time.perf_counter(), time.process_time()
    for batch in range(1, batches + 1):
        await _done(send_many(context, range(batch * size, (batch + 1) * size)))
    answer = {"seconds": time.perf_counter() - start, "began": began, "cpu": time.process_time() - cpu,
              "timed": batches * size, "sent": (batches + 1) * size}  # fmt: skip
    await _done(close(context))
    return answer


async def _pickup(connect, send, committed, count):
    context = await _done(connect())
    began, ended = [], []
    for number in range(count):
        before = os.stat(STAMPS).st_size
        began.append(time.time())
        await _done(send(context, number))
        ended.append(committed())
        while os.stat(STAMPS).st_size == before:
            if time.time() > ended[-1] + PATIENCE:
                raise RuntimeError("a job did not start")
            time.sleep(0.0005)  # noqa: ASYNC251 - a loop would spin instead, on the CPU of the worker
        await asyncio.sleep(random.uniform(0.005, 0.01))
    return {"began": began, "ended": ended}


def run(
    package, *, connect, send, work, left, many=None, close=lambda _: None, committed=time.time, **info
):  # fmt: skip
    """Run the command of sys.argv.

    connect() returns what send(context, number) and many(context, numbers) are given, and close(context) at the end, if
    that takes part in the work; work(*names) works until killed. committed: asked after a send, when it was committed.
    left: an expression for the jobs that the server knows and that are not done, in Lua or SQL. All may be async.
    """

    def serve(*names):
        print("ready", flush=True)
        found = work(*names)
        if inspect.isawaitable(found):
            _run(found)

    commands = {
        "single": lambda count: _run(_single(connect, send, int(count))),
        "many": lambda batches, size: _run(_many(connect, many, close, int(batches), int(size))),
        "pickup": lambda count: _run(_pickup(connect, send, committed, int(count))),
        "serve": serve,
    }
    main(package, commands, left=left, many=many is not None, **info)
