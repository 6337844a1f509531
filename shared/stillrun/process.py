"""What both services need from the operating system: die with the parent, hear a stop early.

granian runs the application in a child process. Two traps follow, both closed here: a killed
parent leaves the child alive with its files and leases, and granian's own handler of SIGTERM
waits for open streams before the application hears of the stop.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable

__all__ = ["allow_open_files", "die_with_parent", "on_stop"]

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel (Linux) to SIGKILL this process when its parent dies; elsewhere do nothing.

    Strictly: when the thread that started it ends. `parent`: its process id, if whoever started us
    has told it; a parent that is dead already is noticed then too.
    """
    parent = os.getppid() if parent is None else parent
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (AttributeError, OSError):
        return
    if os.getppid() != parent:  # it died before the call above: nobody will send the signal
        os.kill(os.getpid(), signal.SIGKILL)


def allow_open_files(wanted: int) -> int:
    """Let this process and its children have so many open files, or as many as the machine lets
    us; answers how many. What a shell gives, 1,024 at most, is a default for programs that select.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft


def on_stop(stop: Callable[[], None]) -> None:
    """Call `stop` once, in a thread of its own, as soon as SIGTERM or SIGINT arrives.

    Call it from the main thread. It replaces nobody's handler: the interpreter writes each
    signal's number to a wakeup socket before any Python handler runs. The thread that runs `stop`
    is no daemon, so the process does not end before `stop` has returned.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        while True:
            numbers = ours.recv(64)
            if signal.SIGTERM in numbers or signal.SIGINT in numbers:
                threading.Thread(target=stop, name="stop", daemon=False).start()
                return

    # `theirs` must stay open as long as the interpreter may write to it.
    threading.Thread(target=watch, name=f"stop-watch-{theirs.fileno()}", daemon=True).start()
    _keep.append(theirs)


_keep: list[socket.socket] = []
