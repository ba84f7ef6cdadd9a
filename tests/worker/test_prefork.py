"""Several worker processes under one parent, and the moments in which one is born."""

import subprocess
import sys

SCRIPT = """
import os
import signal
from scheduler.worker.prefork import Prefork

def tell():
    os.kill(os.getpid(), signal.SIGTERM)

os.register_at_fork(after_in_child=tell, after_in_parent=tell)
Prefork(1, lambda: print("works", flush=True), 1.0).run()
print("ended", flush=True)
"""


def test_a_signal_that_comes_while_a_process_is_born_is_not_lost() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "ended\n"
