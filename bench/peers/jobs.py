"""The bodies that every peer runs: one record of 16 bytes (start, second it was due, number), then
nothing.
"""

import os
import struct
import time

_file = os.open(os.environ.get("BENCH_STAMPS", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_pack = struct.Struct("<dII").pack


def stamp(due, number):
    os.write(_file, _pack(time.time(), due, number))


def hang(due, number):
    """Stamp with the process id, and never end."""
    stamp(due, os.getpid())
    time.sleep(3600)
