"""Compiles job.proto, as `make proto` does: `python -m tests.conveyor.proto` writes the module."""

import subprocess
import sys
from base64 import b64encode
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "scheduler/dialects/conveyor/job.proto"
MODULE = PROTO.with_name("job_pb2.py")
# Not protoc's own module: that runs only on the runtime of its version and newer ones, and this on
# any.
TEXT = '''"""Made out of job.proto by `make proto`; do not edit."""

from base64 import b64decode

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.timestamp_pb2 import Timestamp

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(
    b64decode(
        {parts}
    )
)
Job = message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["Job"])

__all__ = ["Job", "Timestamp"]
'''
PART = 100


def protoc(*options: str, given: bytes = b"") -> bytes:
    """Run the compiler on job.proto, and return what it says."""
    known = str(files("grpc_tools") / "_proto")
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"-I{ROOT}",
        f"-I{known}",
        *options,
        str(PROTO),
    ]
    run = subprocess.run(command, input=given, capture_output=True, timeout=60, check=False)
    if run.returncode:
        raise RuntimeError(run.stderr.decode())
    return run.stdout


def module() -> str:
    """The text of the module."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    with TemporaryDirectory() as folder:
        out = Path(folder) / "job.pb"
        protoc(f"--descriptor_set_out={out}")
        [file] = FileDescriptorSet.FromString(out.read_bytes()).file
    text = b64encode(file.SerializeToString(deterministic=True)).decode()
    parts = [f'"{text[start : start + PART]}"' for start in range(0, len(text), PART)]
    return TEXT.format(parts="\n        ".join(parts))


if __name__ == "__main__":
    MODULE.write_text(module(), "utf-8")
