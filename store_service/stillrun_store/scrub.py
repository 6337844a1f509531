"""The scrub: all files read again, slowly, so that damage is met while there still is a backup.

Always: another process reads, with files that it opened itself, and is told what is durable before
it looks; no finding is believed before the store has seen it too (`Checks.confirmed`). A file that
is deleted or replaced meanwhile is no finding.
"""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

from .storage import BLOB_FOLDERS, Fault, StorageError
from .store import Store

__all__ = ["Scrub"]

_log = logging.getLogger(__name__)

FIRST_PAUSE_S = 60.0  # a start has other work, and many starts are followed by another one
FOLD_ONE_IN = 16  # runs a pass: folding costs a core more than reading costs a disk
MAX_FAILURES = 3  # in one pass: what kills the reader again and again is not read any further


class Scrub:
    """One pass over all files, a pause, and so on. `bytes_per_s`: 0 is never."""

    def __init__(
        self,
        store: Store,
        data_dir: Path,
        *,
        bytes_per_s: int,
        pause_s: float,
        fold_one_in: int = FOLD_ONE_IN,
    ) -> None:
        self._store = store
        self._findings = store.findings
        self._data_dir = data_dir.absolute()
        self._bytes_per_s = bytes_per_s
        self._pause_s = pause_s
        self._fold_one_in = fold_one_in
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        # It starts the child and so must live as long: the kernel ends the child with its thread.
        self._thread = threading.Thread(target=self._run, name="scrub", daemon=True)

    def start(self) -> None:
        """Begin with a pause."""
        if self._bytes_per_s:
            self._thread.start()

    def stop(self) -> None:
        """End at once: nothing it does needs an end."""
        self._stopping.set()
        with self._lock:
            if self._child is not None:
                self._child.kill()  # its reader hears of the end
        if self._thread.is_alive():
            self._thread.join(1.0)  # it may be at a second look

    def _run(self) -> None:
        pause_s = min(FIRST_PAUSE_S, self._pause_s)
        while not self._stopping.wait(pause_s):
            try:
                self.run_once()
            except Exception:
                _log.exception("a scrub failed; the next one comes in %g s", self._pause_s)
            pause_s = self._pause_s

    def run_once(self) -> None:
        """One pass, in this thread."""
        try:
            self._pass()
        finally:
            self._end_child()

    def _pass(self) -> None:
        runs = [info.run for info in self._store.engine.runs()]
        pieces = [("run", run) for run in runs] + [("blobs", folder) for folder in BLOB_FOLDERS]
        # Not in order: a store that is started again before a pass has ended meets all in the end.
        random.shuffle(pieces)
        failures = 0
        for kind, name in pieces:
            try:
                self._piece(kind, name)
            except (EOFError, OSError, ValueError) as error:
                self._end_child()
                if self._stopping.is_set():
                    return
                failures += 1
                self._findings.failures += 1
                _log.warning("scrub: the reader failed at %s %s: %r", kind, name, error)
                if failures >= MAX_FAILURES:
                    return
        known = self._store.engine.runs()
        self._findings.end_pass({info.run for info in known if info.damage is not None})
        found = len(self._findings.all())
        _log.info("scrub: %d runs read again, %d findings", len(runs), found)

    def _piece(self, kind: str, name: str) -> None:
        """Have one run or folder read; EOFError if that process ends before it is done."""
        task: dict[str, Any] = {"blobs": name}
        if kind == "run":
            extent = self._store.engine.checks.extent(name)
            if extent is None:
                return
            turn = (crc32(name.encode()) + self._findings.passes) % self._fold_one_in
            task = {"run": extent.plain(), "fold": turn == 0}
        child = self._reader()
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(json.dumps(task).encode() + b"\n")
        child.stdin.flush()
        while line := child.stdout.readline():
            told = json.loads(line)
            if "done" in told:
                self._findings.bytes_read += told["done"]
                self._findings.folded_runs += bool(task.get("fold"))
                return
            self._met(Fault(**told["fault"]))
        raise EOFError(f"it ended with {child.wait()}")

    def _met(self, suspected: Fault) -> None:
        try:
            fault = self._store.engine.checks.confirmed(suspected)
            if fault is None:
                return
            if fault.kind == "log":
                self._store.note_damage(fault.run)
            elif fault.kind == "fold":
                self._store.reject_snapshot(fault.run, fault.seq)
        except (StorageError, ValueError) as error:
            _log.warning("scrub: no second look at %s: %s", suspected.file, error)
            return
        if self._findings.add(fault):
            _log.error("scrub: %s: %s (run %s)", fault.file, fault.detail, fault.run or "-")

    def _reader(self) -> subprocess.Popen[bytes]:
        """The process that reads; OSError if there can be none."""
        with self._lock:
            if self._stopping.is_set():
                raise EOFError("the store is going down")
            if self._child is None:
                arguments = [str(self._data_dir), str(self._bytes_per_s), str(os.getpid())]
                # Our own modules, wherever they were found, and nothing of the current directory.
                path = os.pathsep.join(filter(None, sys.path))
                self._child = subprocess.Popen(
                    [sys.executable, "-P", "-m", "stillrun_store.scrub_child", *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    close_fds=True,  # LOCK and the listening socket must be free when we are gone
                    env={**os.environ, "PYTHONPATH": path},
                )
            return self._child

    def _end_child(self) -> None:
        """By the thread that reads its answers."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                with suppress(OSError):  # a task that it did not read is nobody's loss
                    if pipe is not None:
                        pipe.close()
