"""Snapshots: caches of the fold, written off the append path, checked before they are believed.

Always: deleting every snapshot changes no answer (I3); one that cannot be read, or is of another
schema version, is ignored and the state is rebuilt from the log; it is never an empty state.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from typing import Any

from stillrun import codec
from stillrun.errors import StillrunError
from stillrun.schema import SCHEMA_VERSION
from stillrun.state import State

from .runs import Entry, Ids
from .storage import Engine
from .storage.errors import NoSuchRun, StorageError

__all__ = ["Writer", "read"]

_log = logging.getLogger(__name__)

KEEP = 2  # the newest two stay whatever they weigh: one may be damaged


def read(engine: Engine, run: str, at_most_seq: int) -> tuple[State, Ids, int] | None:
    """The newest snapshot at or below a seq that this code can use: state, ids, its seq."""
    seq = at_most_seq
    while seq > 0:
        found = engine.get_snapshot(run, seq)
        if found is None:
            return None
        seq, body = found
        try:
            state, ids = _unpacked(body)
            if state.control.seq == seq and len(ids) == seq:
                return state, ids, seq
            _log.warning("snapshot %s of run %s does not fit its seq: ignored", seq, run)
        except (StillrunError, TypeError, ValueError) as error:
            _log.warning("snapshot %s of run %s ignored: %s", seq, run, error)
        seq -= 1
    return None


def _packed(state: State, ids: bytes) -> bytes:
    packed = codec.encode_state(state)
    return codec.encode_msgpack(
        {
            "schema_version": SCHEMA_VERSION,
            "reducer": state.control.reducer,
            "digest": hashlib.blake2b(packed, digest_size=16).digest(),
            "state": packed,
            "ids": ids,
        }
    )


def _unpacked(body: bytes) -> tuple[State, Ids]:
    fields: Any = codec.decode_trusted(body)
    if fields["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema version {fields['schema_version']}")
    packed = fields["state"]
    if hashlib.blake2b(packed, digest_size=16).digest() != fields["digest"]:
        raise ValueError("the digest of the state differs")
    return codec.decode_state(packed), Ids(fields["ids"])


def surplus(sizes: list[tuple[int, int]], log_bytes: int) -> list[int]:
    """Seqs of the snapshots to drop, given (seq, bytes) oldest first.

    While snapshots outweigh the log, the one whose removal leaves the smallest gap goes; the
    newest KEEP stay.
    """
    kept, dropped = list(sizes), []
    while len(kept) > KEEP and sum(size for _, size in kept) > log_bytes:
        seqs = [0, *(seq for seq, _ in kept)]
        gaps = [seqs[at + 2] - seqs[at] for at in range(len(kept) - KEEP)]
        at = gaps.index(min(gaps))
        dropped.append(kept.pop(at)[0])
    return dropped


class Writer:
    """One thread that writes what was asked for; of one run only the newest state waits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked: OrderedDict[str, tuple[State, bytes]] = OrderedDict()
        self._wake = threading.Condition()
        self._closed = False
        self.written = self.failed = 0
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
        self._thread.start()

    def ask(self, entry: Entry, state: State, ids: bytes) -> None:
        """Write a snapshot of this frozen state soon."""
        with self._wake:
            self._asked[entry.run] = (state, ids)
            self._wake.notify()

    def forget(self, run: str) -> None:
        """The run was deleted: what waits for it is not written."""
        with self._wake:
            self._asked.pop(run, None)

    def close(self) -> None:
        """Write what was asked for, then stop."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._asked or self._closed)
                if not self._asked:
                    return
                run, (state, ids) = self._asked.popitem(last=False)
            try:
                self._write(run, state, ids)
                self.written += 1
            except NoSuchRun:
                pass  # deleted meanwhile
            except (StorageError, OSError) as error:
                # A cache that cannot be written costs time later, never an answer now.
                self.failed += 1
                _log.warning("snapshot of run %s failed: %s", run, error)
            except Exception:
                # A state that cannot be packed must not end the snapshots of all runs.
                self.failed += 1
                _log.exception("snapshot of run %s failed", run)

    def _write(self, run: str, state: State, ids: bytes) -> None:
        self._engine.put_snapshot(run, state.control.seq, _packed(state, ids))
        sizes = [(info.seq, info.bytes) for info in self._engine.snapshots(run)]
        for seq in surplus(sizes, self._engine.sizes(run).log_bytes):
            self._engine.drop_snapshot(run, seq)
