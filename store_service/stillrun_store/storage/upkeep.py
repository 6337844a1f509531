"""The background thread: seals logs that rest, writes the index.

Always: it never waits for an append, and an append never waits for more than one header's write;
the thread sleeps until there is something to do."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from .durable import FailStop
from .errors import DataDirUnusable, DiskFull, OutcomeUnknown
from .index import Index
from .log import RunLog
from .writer import LogWriter

__all__ = ["Upkeep"]

INDEX_EVERY_S = 1.0  # what a crash may leave for the next start to read again

logger = logging.getLogger(__name__)


class Upkeep:
    """`wrote` and `changed` may be called from any thread and cost about a microsecond."""

    def __init__(
        self,
        writer: LogWriter,
        index: Index,
        fail_stop: FailStop,
        logs: Callable[[], Iterable[RunLog]],
        still_locked: Callable[[], bool],
        seal_after_s: float,
    ) -> None:
        self._writer = writer
        self._index = index
        self._fail_stop = fail_stop
        self._logs = logs
        self._still_locked = still_locked
        self._seal_after_s = seal_after_s
        self._resting: deque[tuple[float, RunLog]] = deque()  # when it may be sealed
        self._dirty: deque[RunLog] = deque()
        self._index_due: float | None = None
        self._index_lock = threading.Lock()
        self._wake = threading.Event()
        self._wakes_at = math.inf  # monotonic; of no use to those who need it no sooner
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="stillrun-upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; nothing is sealed or written by it afterwards."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def wrote(self, log: RunLog) -> None:
        """The log has a new last frame."""
        now = log.last_write = time.monotonic()
        if not log.queued:
            log.queued = True
            self._resting.append((now + self._seal_after_s, log))
        self._note(log, now + self._seal_after_s)

    def changed(self, log: RunLog) -> None:
        """What the index knows of the log is out of date."""
        self._note(log, time.monotonic() + INDEX_EVERY_S)

    def _note(self, log: RunLog, due: float) -> None:
        if not log.dirty:
            log.dirty = True
            self._dirty.append(log)
        # A thread woken by every append would cost each of them a switch there and back.
        if due < self._wakes_at:
            self._wakes_at = due  # those who come before it has woken need not wake it too
            self._wake.set()

    def flush(self) -> None:
        """Seal every log and write the index now."""
        for log in self._logs():
            with log.lock:
                self._seal(log)
        self._write_index(rewrite=True)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._seal_rested()
                if self._index_due is not None and self._index_due <= time.monotonic():
                    self._index_due = None
                    self._write_index(rewrite=False)
                self._sleep()
        except OutcomeUnknown:
            logger.critical("the disk failed; no more upkeep")
        except BaseException as error:
            # Without sealing and index the store would go on, ever less sure: stop instead.
            self._fail_stop.stop("upkeep failed", error)
            logger.critical("upkeep failed", exc_info=True)

    def _sleep(self) -> None:
        self._wake.clear()
        self._wakes_at = math.inf  # whoever adds from here on wakes us: below it may be overlooked
        if self._dirty and self._index_due is None:
            self._index_due = time.monotonic() + INDEX_EVERY_S
        dues = [self._resting[0][0]] if self._resting else []
        dues += [] if self._index_due is None else [self._index_due]
        self._wakes_at = due = min(dues, default=math.inf)
        if not self._stopping:
            self._wake.wait(None if due == math.inf else max(0.0, due - time.monotonic()))

    def _seal_rested(self) -> None:
        now = time.monotonic()
        while self._resting and self._resting[0][0] <= now and not self._stopping:
            _, log = self._resting.popleft()
            log.queued = False
            # An append under way holds the lock and calls `wrote` afterwards: leave it alone.
            if not log.lock.acquire(blocking=False):
                continue
            try:
                due = log.last_write + self._seal_after_s
                if due <= now:
                    self._seal(log)
                elif not log.queued:
                    log.queued = True
                    self._resting.append((due, log))
            finally:
                log.lock.release()

    def _seal(self, log: RunLog) -> None:
        """Under the log's lock."""
        kept = log.sealed or log.dropped or log.damage or log.uncut is not None
        if not (kept or self._fail_stop.cause):
            self._writer.seal(log)
            self.changed(log)

    def _write_index(self, *, rewrite: bool) -> None:
        if not self._still_locked():
            raise self._fail_stop.stop(
                "LOCK was removed or replaced",
                RuntimeError("another process may own the data directory"),
            )
        with self._index_lock:
            records = []
            while self._dirty:
                log = self._dirty.popleft()
                log.dirty = False  # first: what changes from here on is queued again
                if log.dropped:
                    continue
                if log.damage is None:
                    self._writer.check_place(log)
                records.append(log.index_record())
            every = (log.index_record() for log in self._logs())
            try:
                if rewrite:
                    self._index.rewrite(every)
                elif records:
                    self._index.append(records, every)
            except (DiskFull, DataDirUnusable, OSError) as error:
                logger.warning("the index could not be written, later starts are slower: %s", error)
