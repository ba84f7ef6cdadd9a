"""What every peer of bench/redis.py and bench/ring.py does, once it has said how it sends and how
it works.

single N         send N jobs one by one many BATCHES N   BATCHES calls for N jobs each, if the peer
has such a call pickup N         send a job, wait until it has started, rest a little, and again;
when each call began and ended serve            print "ready" and work, until killed

A job carries a number, from 0, and stamps it. The first calls, which connect and prepare, are not
timed; their jobs count as sent. queued.mjs is the same for Node.
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
    return {
        "seconds": time.perf_counter() - start,
        "began": began,
        "cpu": time.process_time() - cpu,
        "timed": count,
        "sent": WARM + count,
    }


async def _many(connect, send_many, batches, size):
    context = await _done(connect())
    await _done(send_many(context, range(size)))
    began, start, cpu = time.time(), time.perf_counter(), time.process_time()
    for batch in range(1, batches + 1):
        await _done(send_many(context, range(batch * size, (batch + 1) * size)))
    answer = {
        "seconds": time.perf_counter() - start,
        "began": began,
        "cpu": time.process_time() - cpu,
        "timed": batches * size,
        "sent": (batches + 1) * size,
    }
    return answer, context


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


def run(package, *, connect, send, work, left, many=None, close=None, committed=time.time, **info):
    """Run the command of sys.argv.

    connect() returns what send(context, number) and many(context, numbers) are given; if that takes
    part in the work there is a close(context), which is not async, for when all is done.
    work(*names) works until killed. committed: asked after a send, when it was committed. left: an
    expression for the jobs that the server knows and that are not done, in Lua or SQL. Of `info`,
    prefetch: how many jobs a worker takes at most before it can begin them. All others may be
    async.
    """

    def serve(*names):
        print("ready", flush=True)
        found = work(*names)
        if inspect.isawaitable(found):
            _run(found)

    def send_many(batches, size):
        answer, context = _run(_many(connect, many, int(batches), int(size)))
        return answer if close is None else (answer, lambda: close(context))

    commands = {
        "single": lambda count: _run(_single(connect, send, int(count))),
        "many": send_many,
        "pickup": lambda count: _run(_pickup(connect, send, committed, int(count))),
        "serve": serve,
    }
    main(package, commands, left=left, many=many is not None, **info)
