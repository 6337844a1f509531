"""What the server process runs: open the data directory, then answer; a stop loses nothing."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from stillrun.errors import StillrunError
from stillrun.process import die_with_parent, on_stop

from .app import create_app
from .config import Config
from .restored import pause_restored
from .scrub import Scrub
from .storage import Engine, StorageError
from .store import Store
from .timers import Timers
from .turns import Turns

__all__ = ["serve"]

_log = logging.getLogger("stillrun_store")

EXIT_CANNOT_START = 1
EXIT_DISK_FAILED = 70
STOP_S = 3.0  # what requests in flight may take after a stop was asked for


def serve(
    config: Config,
    answer: Callable[..., None],
    worker_id: int,
    process_name: str,
    _loader: object,
    *rest: Any,
) -> None:
    """In granian's child process: the store and its door, until a signal ends both.

    `answer`: granian's own spawn target, which serves until a signal comes.
    """
    die_with_parent()  # else a killed parent leaves us alive, holding the lock
    _until_granian_listens(lambda: os._exit(0))  # nothing was answered yet: as good as a crash
    logging.basicConfig(
        level=config.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    try:
        engine = Engine.open(config.data, on_fatal=_disk_failed)
    except (StorageError, OSError) as error:
        sys.stderr.write(f"stillrun-store cannot start: {error}\n")
        sys.stderr.flush()
        os._exit(EXIT_CANNOT_START)
    turns = Turns(sys.setswitchinterval)
    store = Store(
        engine,
        snapshot_every=config.snapshot_every,
        storage_model=config.storage_model,
        turns=turns,
    )
    try:
        pause_restored(store)
    except StillrunError as error:
        sys.stderr.write(f"stillrun-store cannot start: restored runs: {error}\n")
        sys.stderr.flush()
        os._exit(EXIT_CANNOT_START)
    timers = Timers(store)
    scrub = Scrub(
        store, config.data, bytes_per_s=config.scrub_bytes_per_s, pause_s=config.scrub_pause_s
    )
    flight = _InFlight(create_app(store, allowed_hosts=config.allowed_hosts), turns)
    stopping = threading.Lock()

    def stop() -> None:
        with stopping:  # the second to come waits for the first
            if not store.stopping.is_set():
                started = time.monotonic()
                store.stop()
                scrub.stop()
                timers.join()
                flight.wait(STOP_S)
                store.close()
                _log.info("stopped in %.2f s, all runs sealed", time.monotonic() - started)

    on_stop(stop)
    _until_granian_listens(lambda: sys.exit(0))
    try:
        timers.start()
        scrub.start()
        _report(store, config)
        answer(worker_id, process_name, lambda: flight, *rest)
    finally:
        # The main thread may hear of the signal before `on_stop` does, and end the process.
        stop()


def _until_granian_listens(end: Callable[[], object]) -> None:
    """How a signal ends us before granian has set its handlers: the parent's are in force here."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end())


def _disk_failed(error: BaseException) -> None:
    """fsync failed: nobody knows what is on the disk. Say so, answer what is in flight, end."""
    _log.critical("the disk failed, ending: %s", error)
    try:
        threading.Timer(0.2, os._exit, (EXIT_DISK_FAILED,)).start()
    except (RuntimeError, MemoryError):
        # No thread is to be had: then without the answers.
        os._exit(EXIT_DISK_FAILED)


def _report(store: Store, config: Config) -> None:
    report = store.engine.recovery
    _log.info("store %s in %s: %d runs", store.engine.store_id, config.data, len(store.entries()))
    for tail in report.torn_tails:
        _log.warning("torn tail cut: %s", tail)
    for entry in store.entries():
        if entry.damage is not None:
            _log.error("run %s is damaged: %s", entry.run, entry.damage.detail)


class _InFlight:
    """Counts requests, so that the files are closed after the last answer was made."""

    def __init__(self, app: Any, turns: Turns) -> None:
        self._app = app
        self._turns = turns
        self._count = 0
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()

    def __call__(self, environ: Any, start_response: Any) -> Any:
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._idle.clear()
        self._turns.begin()
        try:
            return self._app(environ, start_response)
        finally:
            self._turns.end()
            with self._lock:
                self._count -= 1
                if self._count == 0:
                    self._idle.set()

    def wait(self, timeout_s: float) -> None:
        """Return when no request is at work, or the time is over."""
        self._idle.wait(timeout_s)
