"""Serves the world: ``python -m world``.

WORLD_LISTEN   host:port, default 127.0.0.1:8102
WORLD_DATA     folder of the ledger; without it a restarted world has forgotten everything"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flask import Flask
from granian import Granian
from granian.constants import Interfaces
from granian.log import LOGGING_CONFIG, LogLevels

from .app import ReplyLost, create_app

DEFAULT_LISTEN = "127.0.0.1:8102"
LEDGER_FILE = "ledger.jsonl"
BLOCKING_THREADS = 32  # gates.MAX_HELD of them may be kept waiting
KILL_TIMEOUT_S = 2  # calls that stand at a gate must not hold up the end; the ledger is on disk
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    host, port = parse_listen(os.environ)
    sys.stderr.write(f"world listens on http://{host}:{port}\n")
    Granian(
        f"{__package__}.__main__:create_app_in_worker",
        factory=True,
        address=host,
        port=port,
        interface=Interfaces.WSGI,
        websockets=False,
        workers=1,
        blocking_threads=BLOCKING_THREADS,
        workers_kill_timeout=KILL_TIMEOUT_S,
        log_level=LogLevels.error,
        log_dictconfig=log_config(),
    ).serve()


def parse_listen(environ: Mapping[str, str]) -> tuple[str, int]:
    """Host and port of WORLD_LISTEN; a bad value ends the start by name."""
    value = environ.get("WORLD_LISTEN") or DEFAULT_LISTEN
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        sys.exit(f"WORLD_LISTEN must be host:port, not {value!r}")
    return host, int(port)


def create_app_in_worker() -> Flask:
    """The app in granian's worker process, which dies with its parent."""
    parent = os.getppid()
    if sys.platform == "linux":
        # kill -9 of the parent would leave a worker that keeps the port and the ledger.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("the parent died during the start")
    folder = os.environ.get("WORLD_DATA")
    return create_app(Path(folder) / LEDGER_FILE if folder else None, clock=time.time)


class NotScripted(logging.Filter):
    """Keeps the traceback of a reply that was lost on purpose out of the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        return f"{ReplyLost.__name__}: " not in record.getMessage()  # granian logs it as text


def log_config() -> dict[str, Any]:
    """granian's own configuration with the filter added, where its child loggers pass too."""
    handlers: Any = LOGGING_CONFIG["handlers"]
    return {
        "filters": {"not_scripted": {"()": NotScripted}},
        "handlers": {
            handler: {**settings, "filters": ["not_scripted"]}
            for handler, settings in handlers.items()
        },
    }


if __name__ == "__main__":
    main()
