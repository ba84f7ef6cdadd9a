"""A watch over every lock that `scheduler` makes: who holds it, and what is done meanwhile.

It replaces `threading` in the package's modules, so it must begin before a scheduler is
constructed.
"""

import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any

import pytest

LOCK, RLOCK = type(threading.Lock()), type(threading.RLock())
OTHERS = {"Semaphore", "BoundedSemaphore", "Barrier"}


class WatchedLock:
    """A lock that tells the watch who took it; also the inner lock of a Condition, whose `wait`
    gives it back.
    """

    def __init__(self, watch: "Watch", name: str, inner: Any) -> None:
        self._watch = watch
        self._inner = inner
        self.name = name

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = bool(self._inner.acquire(blocking, timeout))
        if taken:
            self._watch.took(self.name)
        return taken

    def release(self) -> None:
        self._watch.gave_back(self.name)
        self._inner.release()

    def locked(self) -> bool:
        return bool(self._inner.locked())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Watch:
    """Notes what is done by a thread that holds a lock. `allowed` names the function in which a
    lock may be held.
    """

    def __init__(self, allowed: Mapping[str, str]) -> None:
        self._allowed = allowed
        self._held: defaultdict[int, list[str]] = defaultdict(list)
        self.taken: set[str] = set()
        self.used: set[str] = set()
        self.violations: list[str] = []

    def took(self, name: str) -> None:
        self.taken.add(name)
        self._held[threading.get_ident()].append(name)

    def gave_back(self, name: str) -> None:
        self._held[threading.get_ident()].remove(name)

    def slow(self, what: str) -> None:
        """Say that this thread now does something that may take long."""
        for name in self._held[threading.get_ident()]:
            function = self._allowed.get(name)
            if function is not None and function in map(_qualified, _frames(sys._getframe())):
                self.used.add(name)
            else:
                stack = "".join(traceback.format_stack(limit=30))
                self.violations.append(f"{what} while {name} is held:\n{stack}")

    def over(self, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Call `slow` at the start of a function or method."""
        original: Callable[..., Any] = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.slow(f"{owner.__name__}.{name}")
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace `threading` in every loaded module of the package, and the locks made while they
        were imported.
        """
        watched = WatchedThreading(self)
        for module in package():
            for name, value in list(vars(module).items()):
                assert value not in (threading.Lock, threading.RLock, threading.Condition), (
                    f"{module.__name__}.{name}"
                )
                if value is threading:
                    monkeypatch.setattr(module, name, watched)
                elif isinstance(value, LOCK | RLOCK):
                    monkeypatch.setattr(module, name, WatchedLock(self, module.__name__, value))
                elif isinstance(value, type) and value.__module__ == module.__name__:
                    self._class(value, monkeypatch)

    def _class(self, owner: type, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in list(vars(owner).items()):
            if isinstance(value, LOCK | RLOCK):
                monkeypatch.setattr(
                    owner,
                    name,
                    WatchedLock(self, f"{owner.__module__}.{owner.__qualname__}", value),
                )


class WatchedThreading(ModuleType):
    """`threading` with locks that tell; each is named for the class or module that made it."""

    def __init__(self, watch: Watch) -> None:
        super().__init__("threading")
        self._watch = watch

    def Lock(self) -> WatchedLock:
        return WatchedLock(self._watch, _maker(), threading.Lock())

    def RLock(self) -> WatchedLock:
        return WatchedLock(self._watch, _maker(), threading.RLock())

    def Condition(self, lock: Any = None) -> threading.Condition:
        inner: Any = lock or WatchedLock(self._watch, _maker(), threading.Lock())
        return threading.Condition(inner)

    def __getattr__(self, name: str) -> Any:
        assert name not in OTHERS, f"threading.{name}: teach the watch about it"
        return getattr(threading, name)


def package() -> list[ModuleType]:
    return [
        module for name, module in list(sys.modules.items()) if name.split(".")[0] == "scheduler"
    ]


def _maker() -> str:
    frame = sys._getframe(2)
    module = str(frame.f_globals["__name__"])
    owner = frame.f_locals.get("self", frame.f_locals.get("cls"))
    owner = owner if isinstance(owner, type) or owner is None else type(owner)
    return module if owner is None else f"{module}.{owner.__qualname__}"


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _qualified(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"
