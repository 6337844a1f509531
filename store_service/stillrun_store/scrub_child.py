"""`python -m stillrun_store.scrub_child DIR BYTES_PER_S PARENT`: the process that a scrub reads in.

Always: it dies with its parent, and comes last for processor and disk; it opens files for reading
only and inherits nothing but its three pipes.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from pathlib import Path

from stillrun.process import die_with_parent

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # the system call has no wrapper in the C library
_IDLE_CLASS = 3 << 13


def main() -> None:
    """Read tasks from stdin until it ends."""
    data_dir, bytes_per_s, parent = sys.argv[1:]
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the store, which ends us
    _come_last()
    from .scrubbing import serve  # the rest of the imports costs others nothing any more

    serve(Path(data_dir), int(bytes_per_s), sys.stdin.buffer, sys.stdout.buffer)


def _come_last() -> None:
    os.nice(19)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        # Schedulers without classes ignore it; a kernel that refuses it leaves us where we were.
        ctypes.CDLL(None).syscall(number, 1, 0, _IDLE_CLASS)


if __name__ == "__main__":
    main()
