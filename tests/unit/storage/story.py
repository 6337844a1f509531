"""One short life of a store that passes every path that writes, and what must be left of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from stillrun_store.storage import DiskFull, Engine, OsFiles, OutcomeUnknown, StorageError
from unit.storage.faults import Unsynced
from unit.storage.logs import LOG_ID, NEVER_S, OTHER_ID, payload

SEGMENT_BYTES = 700
BLOB = b"a large value" * 20
BLOB_ID = hashlib.sha256(BLOB).hexdigest()
LOG_IDS = {"run": LOG_ID, "other": OTHER_ID}


@dataclass
class Story:
    """What was acknowledged, and what was asked for without an answer."""

    acked: dict[str, list[bytes]] = field(default_factory=dict)
    unanswered: dict[str, list[bytes]] = field(default_factory=dict)
    snapshots: set[int] = field(default_factory=set)
    has_blob: bool = False
    errors: list[StorageError] = field(default_factory=list)
    next_payload: int = 1
    stopped: bool = False

    def tell(self, data: Path, files: OsFiles) -> None:
        """Go through it all; a StorageError ends a step, not the story."""
        try:
            engine = Engine.open(
                data, files=files, seal_after_s=NEVER_S, max_segment_bytes=SEGMENT_BYTES
            )
        except StorageError as error:
            self.errors.append(error)
            return
        try:
            self._write(engine, "run", 2)
            self._write(engine, "run", 1)
            self._write(engine, "run", 3)
            self._step(lambda: self._snapshot(engine))
            self._step(engine.flush)
            self._write(engine, "run", 1)  # in place of the seal
            self._write(engine, "other", 1)
            self._step(lambda: engine._upkeep._write_index(rewrite=False))  # goes on in the file
            self._write(engine, "run", 2)  # rolls
            self._step(lambda: self._drop(engine))
            self._step(engine.flush)
            self._write(engine, "other", 2)
            self._step(lambda: self._blob(engine))
            self._step(lambda: self._snapshot(engine))
            self._step(lambda: engine._upkeep._write_index(rewrite=False))
            self._write(engine, "run", 1)
        finally:
            self._step(engine.close)

    def check(self, data: Path) -> None:
        """Everything acknowledged is there, what was not is whole or absent, and work goes on."""
        engine = Engine.open(
            data, files=Unsynced(), seal_after_s=NEVER_S, max_segment_bytes=SEGMENT_BYTES
        )
        try:
            assert engine.recovery.damaged == []
            assert engine.recovery.unknown == []
            for run in LOG_IDS:
                self._check_run(engine, run)
            for seq in self.snapshots:
                assert engine.get_snapshot("run", seq) == (seq, b"state")
            if engine.info("run"):
                assert engine.get_snapshot("run", 10**6) in self._possible_states(engine)
            if self.has_blob:
                assert engine.get_blob(BLOB_ID) == BLOB
            assert engine.put_blob(BLOB_ID, BLOB) in (True, False)
        finally:
            engine.close()

    def _possible_states(self, engine: Engine) -> list[object]:
        return [None, *((info.seq, b"state") for info in engine.snapshots("run"))]

    def _check_run(self, engine: Engine, run: str) -> None:
        acked, info = self.acked.get(run, []), engine.info(run)
        found = engine.read(run, 1, info.head_seq) if info else []
        maybe = self.unanswered.get(run, [])
        assert found in (acked, acked + maybe), (found, acked, maybe)
        if info is None:
            assert engine.create(run, LOG_IDS[run], [b"again"]).last_seq == 1
        else:
            assert engine.append(run, [b"again"]).last_seq == len(found) + 1
        assert engine.read(run, 1, len(found) + 1) == [*found, b"again"]

    def _write(self, engine: Engine, run: str, count: int) -> None:
        payloads = [payload(self.next_payload + n) for n in range(count)]
        self.next_payload += count
        acked = self.acked.get(run, [])
        known = run in self.acked
        before = self.unanswered.get(run, [])
        self.unanswered[run] = payloads
        try:
            if known:
                appended = engine.append(run, payloads)
            else:
                appended = engine.create(run, LOG_IDS[run], payloads)
        except DiskFull as error:
            self.unanswered[run] = []  # it says that nothing was written
            self.errors.append(error)
            return
        except StorageError as error:
            self.errors.append(error)
            if self.stopped:
                self.unanswered[run] = before  # refused outright: the disk had failed earlier
            self.stopped = self.stopped or isinstance(error, OutcomeUnknown)
            return
        assert (appended.first_seq, appended.last_seq) == (len(acked) + 1, len(acked) + count)
        self.acked[run] = acked + payloads
        self.unanswered[run] = []
        self._step(lambda: self._read(engine, run))

    def _read(self, engine: Engine, run: str) -> None:
        assert engine.read(run, 1, len(self.acked[run])) == self.acked[run]

    def _snapshot(self, engine: Engine) -> None:
        seq = engine.info("run").head_seq if engine.info("run") else 0
        if seq:
            engine.put_snapshot("run", seq, b"state")
            self.snapshots.add(seq)

    def _drop(self, engine: Engine) -> None:
        for seq in sorted(self.snapshots):
            self.snapshots.discard(seq)  # from here on it may be there or not
            engine.drop_snapshot("run", seq)

    def _blob(self, engine: Engine) -> None:
        engine.put_blob(BLOB_ID, BLOB)
        self.has_blob = True

    def _step(self, step) -> None:
        try:
            step()
        except StorageError as error:
            self.errors.append(error)
