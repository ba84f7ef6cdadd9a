"""The roles of a process: what `scheduler run` starts out of its configuration, and how it ends."""

import contextlib
import importlib
import inspect
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import scheduler
from scheduler.app import Scheduler
from scheduler.cli import rules
from scheduler.cli.options import Configuration
from scheduler.cli.produce import produce
from scheduler.cli.show import Failure, visible
from scheduler.dialects.client import Client
from scheduler.dialects.reliable.wire import FILE
from scheduler.errors import ConfigError, NotInitialised, QueueUnavailable
from scheduler.log import logger
from scheduler.model.addresses import RedisOptions
from scheduler.observe import logs, traces
from scheduler.observe.serving import Serving
from scheduler.observe.watched import Watched
from scheduler.service import Asked, collect_rarely, heard
from scheduler.worker.handlers import handlers
from scheduler.worker.worker import Worker

ROLES = ("scheduler", "producer", "worker", "all")
NOT_THEIRS = ("<frozen", importlib.__path__[0], scheduler.__path__[0])


def run(role: str, config: Configuration, app: str | None, *, as_json: bool = False) -> None:
    """Run a role until a signal; a producer until it has seen every file."""
    logs.configure("warning")
    if role == "worker":
        work(config, app)
        return
    if role == "all" and config.worker.processes > 1:
        raise ConfigError(
            "worker.processes: must be 1 in role all, which is one process; for more, run "
            "--role=worker"
        )
    if role != "scheduler":
        rules.producer_rule(config).check_priorities(config.worker.queues)
    process = Process(config)
    try:
        if role != "producer":
            process.schedule(app)
        _observe(config)
        process.serve()
        if role == "all" and not process.asked_to_end:
            process.work()
        if (
            role == "producer" or (role == "all" and _has_files(config))
        ) and not process.asked_to_end:
            process.produce(alone=role == "producer", as_json=as_json)
        collect_rarely()
        logger.info("role %s: started", role)
        process.wait()
        logger.info("role %s: ends", role)
    finally:
        process.stop()


def work(config: Configuration, app: str | None, queues: Sequence[str] | None = None) -> None:
    """Run a worker of some queues, or of all that have handlers."""
    logs.configure("warning")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(
            number, lambda *_: os._exit(0)
        )  # until the worker hears them: it has nothing in its hands yet
    if app is not None:
        loaded(app)
    _observe(config)
    worker = _worker(config, queues)
    with _serving(config).around(worker):
        worker.run()


class Process:
    """The parts that run, until a signal or the end of their work. A second signal ends it at once.

    A signal's handler only puts into a queue: it runs between any two lines of the main thread.
    """

    def __init__(self, config: Configuration) -> None:
        self._config = config
        self._inbox: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._asked = Asked()
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        self._producing: threading.Thread | None = None
        self._serving: Serving | None = None
        self._stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def schedule(self, app: str | None) -> Scheduler:
        """Start the scheduler of the process, let the app register its jobs with it, and return
        it.
        """
        config = self._config
        options = rules.scheduler_options(config)
        if options["redis"] is not None:
            _greet(config)
        self._scheduler = scheduler.initialise(config.scheduler.database, **options)
        register = None if app is None else loaded(app)
        if register is not None:
            with _blamed(f"app: {app} failed"):
                register(self._scheduler)
        return self._scheduler

    def serve(self) -> None:
        """Let others see how the process is, as far as it runs."""
        self._serving = _serving(self._config)
        if self._scheduler is not None:
            self._serving.watch(self._scheduler)
        self._serving.__enter__()

    def work(self) -> None:
        """Start a worker."""
        self._worker = _worker(self._config, None)
        self._watch(self._worker)
        self._worker.start()

    def produce(self, *, alone: bool, as_json: bool) -> None:
        """Start a producer; alone, its end is the end of the process."""
        client = Client(_greet(self._config))
        rule, keys = rules.producer_rule(self._config), rules.original_keys(self._config)
        queue, watch = self._config.worker.file_queue, self._watch

        def report() -> None:
            try:
                produce(client, rule, keys, self._stop, as_json=as_json, queue=queue, watch=watch)
            except BaseException as error:  # noqa: BLE001 - raised again in the main thread
                self._inbox.put(error)
            else:
                if alone:
                    self._inbox.put(None)

        self._producing = threading.Thread(target=report, name="scheduler-produce", daemon=True)
        self._producing.start()

    def _watch(self, watched: Watched) -> None:
        if self._serving is not None:
            self._serving.watch(watched)

    @property
    def asked_to_end(self) -> bool:
        """Whether the end was asked for: then nothing more needs to start."""
        return not self._inbox.empty()

    def wait(self) -> None:
        """Wait for the end; raises what failed."""
        error = heard(self._inbox)
        if error is not None:
            raise error

    def stop(self) -> None:
        """Stop all parts, the scheduler last: handlers that end may still submit, and their ends
        are settled.
        """
        until = time.monotonic() + self._config.scheduler.grace.total_seconds()
        self._stop.set()
        if self._worker is not None:
            self._worker.stop()
        if self._producing is not None:
            self._producing.join()
        if self._scheduler is not None and self._scheduler.is_running():
            scheduler.cancel(timeout=max(0.0, until - time.monotonic()))
        if self._serving is not None:
            self._serving.__exit__()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        times = self._asked.heard()
        if times == 1:
            self._inbox.put(None)
        elif times:
            os._exit(128 + number)  # what it holds is taken back when its leases are over


def _has_files(config: Configuration) -> bool:
    """Whether there is a folder for the producer: one process of all roles also serves those who
    have no files.
    """
    folder = config.producer.scan_dir
    if not os.access(folder, os.F_OK):
        logger.warning(
            "producer.scan_dir: there is no %r: role all runs without a producer", folder
        )
        return False
    return True


def loaded(app: str) -> Callable[[Scheduler], object] | None:
    """Import a module, for what it registers; of `module:function` return the function, which
    registers jobs.
    """
    module, _, name = app.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    with _blamed(f"app: {module} cannot be imported"):
        found = importlib.import_module(module)
    if not name:
        return None
    function = getattr(found, name, None)
    if not callable(function):
        raise Failure(
            f"app: {module} has no function {name!r}; it would be given the scheduler, to register "
            "jobs"
        )
    if inspect.iscoroutinefunction(function):
        raise Failure(f"app: {app} is `async def`; it must be `def`, for nobody would wait for it")
    return function  # type: ignore[no-any-return]


@contextlib.contextmanager
def _blamed(what: str) -> Iterator[None]:
    """Say of an error of the app where it is, in one line."""
    try:
        yield
    except NotInitialised as error:
        cure = (
            "register jobs in a function that is given the scheduler, and name it, as in --app "
            "module:register"
        )
        raise Failure(
            f"{what}: {error} Only the roles scheduler and all have a scheduler; {cure}"
        ) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is theirs
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [each for each in frames if not each.filename.startswith(NOT_THEIRS)]
        where = f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""
        raise Failure(
            visible(" ".join(f"{what}: {type(error).__name__}: {error}{where}".split()))
        ) from None


def _worker(config: Configuration, queues: Sequence[str] | None) -> Worker:
    if not handlers:
        raise ConfigError("app: there are no handlers; name the module that has them: --app module")
    files = config.worker.file_queue
    return Worker(
        _greet(config, original=(files, FILE) in handlers and (queues is None or files in queues)),
        queues,
        dialect=config.queues,
        concurrency=config.worker.count,
        processes=config.worker.processes,
        lease=config.worker.heartbeat_ttl,
        grace=config.worker.grace,
        retry=rules.retry_policy(config),
        block=config.worker.brpoplpush_timeout,
        reaper=rules.reaper_rule(config),
        breaker=rules.breaker_rule(config),
        fetch=config.worker.fetch,
        originals={files: rules.original_keys(config)},
    )


def _serving(config: Configuration) -> Serving:
    """Make what serves the port; queues that the configuration and the app know have names of their
    own.
    """
    known = {"default", config.worker.file_queue, *config.queues, *(queue for queue, _ in handlers)}
    seen = config.observability
    return Serving(seen.host, seen.metrics_port, known, seen.queue_sample_interval)


def _greet(config: Configuration, *, original: bool = False) -> RedisOptions:
    """See whether Redis lets us in, and say how it is reached; one that is away is waited for by
    whoever needs it.
    """
    redis = rules.redis_options(config)
    if redis is None:
        raise ConfigError("redis.addr: must not be empty; producers and workers need a Redis")
    client = Client(redis)
    try:
        if client.clustered and original and not rules.original_keys(config).tagged:
            raise ConfigError(
                "worker.queues: a cluster needs one hash tag in all keys of Redis that section "
                "worker names, as in"
                " jobqueue:{files}:high_priority; or name a worker.file_queue that your app does "
                "not have"
            )
    except QueueUnavailable as error:
        logger.warning("%s; waiting for it", error)
    finally:
        client.close()
    return redis


def _observe(config: Configuration) -> None:
    """Log as much as is wanted, and send traces, unless the app has said where they go."""
    logs.configure(config.observability.log_level)
    tracing = config.observability.tracing
    if tracing.enabled:
        traces.configure(endpoint=tracing.endpoint)
