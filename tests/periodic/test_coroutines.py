"""The loop on a thread of its own: what becomes of it where something goes wrong."""

import asyncio
import threading

import pytest

from scheduler.coroutines import Coroutines
from scheduler.model.body import Cancelled


def test_a_loop_whose_thread_cannot_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    coroutines, body = Coroutines(None), asyncio.sleep(0.01, "done")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            coroutines.run(body, Cancelled())
    assert coroutines.run(body, Cancelled()) == "done"
    coroutines.stop()
