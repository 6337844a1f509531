"""Everything in a data directory, file by file, for people: the truth, the caches, the damage.

Always: reads only (`look`); damage ends nothing: what follows it is given out as far as it can be
read, and marked as unverified where the chain of checksums was lost."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from .datadir import OURS as ROOT_NAMES
from .datadir import read_store
from .errors import DataDirUnusable
from .files import Files, StatEntry
from .format import (
    FORMAT_VERSION,
    FRAME,
    Place,
    decode_body,
    decode_index,
    decode_snapshot,
    directory_name,
    is_blob_name,
    parse_segment_name,
    parse_snapshot_name,
)
from .graves import grave_name, is_attempt, last_frame
from .info import Damage
from .look import index_of, look
from .recovery import OURS as LEFT_OVER
from .recovery import Recovery
from .walk import BadFrame, Frame, Pread, events_of, identify, walk

__all__ = ["Item", "head", "survey"]


class Item(NamedTuple):
    """One thing found. `file` is relative to the directory, `offset` in bytes of that file.

    `payload`: the opaque bytes of an event or a snapshot."""

    file: str
    kind: str
    offset: int | None = None
    seq: int | None = None
    facts: dict[str, Any] = {}  # noqa: RUF012 - never changed
    payload: bytes | None = None


def survey(files: Files, data_dir: Path, run: str | None = None) -> Iterator[Item]:
    """All of the directory, or what belongs to one run. OSError if it cannot be listed."""
    known = yield from head(files, data_dir)
    if not known:
        return
    yield from _index(files, data_dir, run)
    names = {entry.name for entry in files.scan(data_dir)}
    if "runs" in names:
        recovery = look(files, data_dir / "runs", index_of(files, data_dir))
        only = None if run is None else directory_name(run)
        for entry in sorted(files.scan(data_dir / "runs")):
            name = grave_name(entry)
            attempt = is_attempt(entry)
            if only not in (None, name, entry.name.removesuffix(".tombstone.tmp")):
                continue
            if name is not None or attempt:
                yield from _grave(files, data_dir, entry)
            else:
                yield from _Run(files, data_dir, entry, recovery).items()
        for damage in recovery.report.damaged:
            gone = not files.exists(data_dir / "runs" / damage.directory)
            if gone and only in (None, damage.directory):
                yield _damage(f"runs/{damage.directory}", 0, damage.seq, damage.detail)
    if run is None:
        if "blobs" in names:
            yield from _blobs(files, data_dir)
        for name in sorted(names):
            if not ROOT_NAMES.fullmatch(name):
                yield Item(name, "unknown")
            elif name.endswith(".tmp"):
                yield Item(name, "unfinished")


def head(files: Files, data_dir: Path) -> Generator[Item, None, bool]:
    """FORMAT and store.json; answers whether this code may read the rest."""
    text = _text(files, data_dir / "FORMAT")
    if text is None:
        yield _damage("FORMAT", 0, None, "it is missing")
    elif text.strip() != str(FORMAT_VERSION):
        detail = f"{text.strip()[:40]!r}; this code knows {FORMAT_VERSION}"
        yield _damage("FORMAT", 0, None, detail)
        return False
    else:
        yield Item("FORMAT", "format", 0, None, {"content": text.strip()})
    try:
        store = read_store(files, data_dir)
    except DataDirUnusable as error:
        yield _damage("store.json", 0, None, error.reason)
    else:
        if store is None:
            yield _damage("store.json", 0, None, "it is missing")
        else:
            yield Item("store.json", "store", 0, None, {"content": store})
    return True


def _text(files: Files, path: Path) -> str | None:
    try:
        return files.read(path).decode(errors="replace")
    except FileNotFoundError:
        return None


def _damage(file: str, offset: int, seq: int | None, detail: str, **facts: Any) -> Item:
    return Item(file, "damage", offset, seq, {"detail": detail, **facts})


def _index(files: Files, data_dir: Path, run: str | None) -> Iterator[Item]:
    name, at = "index/runs.idx", 0
    try:
        data = files.read(data_dir / name)
    except FileNotFoundError:
        return
    for record, end in decode_index(data):
        if run in (None, record.run):
            facts = {"content": msgspec.structs.asdict(record)}
            yield Item(name, "index record", at, record.head_seq, facts)
        at = end
    if at < len(data) and run is None:
        yield Item(name, "torn", at, None, {"bytes": len(data) - at})


def _blobs(files: Files, data_dir: Path) -> Iterator[Item]:
    for folder in sorted(files.scan(data_dir / "blobs")):
        path = data_dir / "blobs" / folder.name
        for entry in sorted(files.scan(path)) if folder.is_dir else []:
            name = f"blobs/{folder.name}/{entry.name}"
            if entry.name.endswith(".tmp"):
                yield Item(name, "unfinished", 0, None, {"bytes": entry.size_bytes})
            elif not is_blob_name(entry.name):
                yield Item(name, "unknown")
            elif hashlib.sha256(files.read(path / entry.name)).hexdigest() != entry.name:
                yield _damage(name, 0, None, "its bytes have another hash")
            else:
                yield Item(name, "blob", 0, None, {"bytes": entry.size_bytes})
        if not folder.is_dir:
            yield Item(f"blobs/{folder.name}", "unknown")


def _grave(files: Files, data_dir: Path, entry: StatEntry) -> Iterator[Item]:
    """What is kept of a deleted run: its tombstone, and what the next start removes."""
    name = f"runs/{entry.name}"
    if entry.is_dir:
        for inner in sorted(files.scan(data_dir / "runs" / entry.name)):
            facts = {"bytes": inner.size_bytes, "detail": "of a deleted run"}
            yield Item(f"{name}/{inner.name}", "unfinished", 0, None, facts)
        return
    data = files.read(data_dir / name)
    found = last_frame(data)
    kind = "unfinished" if is_attempt(entry) else "tombstone"
    yield Item(name, kind, 0, None, {"bytes": len(data)})
    if found is not None:
        yield from _frame_items(name, *found)


class _Run:
    """One entry of runs/."""

    def __init__(self, files: Files, data_dir: Path, entry: StatEntry, found: Recovery) -> None:
        self._files = files
        self._path = data_dir / "runs" / entry.name
        self._file = f"runs/{entry.name}"
        self._entry = entry
        self._found = found
        damages = [d for d in found.report.damaged if d.directory == entry.name]
        self._damage: Damage | None = damages[0] if damages else None
        self._shown: set[tuple[str, int]] = set()

    def items(self) -> Iterator[Item]:
        if LEFT_OVER.fullmatch(self._entry.name):
            yield Item(self._file, "torn", None, None, {"detail": "moved aside by a start"})
            return
        for text in self._found.report.unknown:
            if text == self._file or text.startswith(f"{self._file}: "):
                yield Item(self._file, "unknown", None, None, {"detail": text})
                return
        if self._file in self._found.report.half_made:
            yield Item(self._file, "torn", 0, 1, {"detail": "its creation never finished"})
        try:
            entries = sorted(self._files.scan(self._path))
        except OSError as error:
            yield _damage(self._file, 0, 1, f"cannot be listed: {error}")
            return
        for entry in entries:
            yield from self._entry_items(entry)
        damage = self._damage
        if damage is not None and (damage.segment, damage.offset) not in self._shown:
            name = f"{self._file}/{damage.segment}".rstrip("/")
            yield _damage(name, damage.offset, damage.seq, damage.detail)

    def _entry_items(self, entry: StatEntry) -> Iterator[Item]:
        name = f"{self._file}/{entry.name}"
        if (first_seq := parse_segment_name(entry.name)) is not None and not entry.is_dir:
            yield from self._segment(entry.name, first_seq)
        elif (seq := parse_snapshot_name(entry.name)) is not None and not entry.is_dir:
            yield self._snapshot(name, entry.name, seq)
        elif ".torn-" in entry.name and LEFT_OVER.fullmatch(entry.name):
            yield Item(name, "torn", 0, None, {"bytes": entry.size_bytes, "detail": "kept"})
        elif LEFT_OVER.fullmatch(entry.name):
            yield Item(name, "unfinished", 0, None, {"bytes": entry.size_bytes})
        else:
            yield Item(name, "unknown")

    def _snapshot(self, name: str, file_name: str, seq: int) -> Item:
        try:
            head, run, body = decode_snapshot(self._files.read(self._path / file_name))
        except (ValueError, OSError) as error:
            return _damage(name, 0, seq, str(error), derived=True)
        facts = {"run": run, "log_id": head.log_id.hex(), "chain": head.chain, "bytes": len(body)}
        return Item(name, "snapshot", 0, head.seq, facts, body)

    def _segment(self, file_name: str, first_seq: int) -> Iterator[Item]:
        name = f"{self._file}/{file_name}"
        try:
            fd = self._files.open_read(self._path / file_name)
        except OSError as error:
            yield self._stop(file_name, 0, first_seq, f"cannot be read: {error}", 0)
            return
        try:
            size = self._files.size(fd)

            def pread(count: int, offset: int) -> bytes:
                return self._files.pread(fd, count, offset)

            log_id: bytes | None = None
            start: Place | None = None
            bad = BadFrame(0, first_seq, "the segment is empty")
            try:
                log_id, origin = identify(pread, first_seq, size)
                start = Place(first_seq, 0, origin.previous_crc, origin.previous_chain)
            except BadFrame as error:
                bad = error
            while True:
                if start is not None and log_id is not None:
                    try:
                        for frame in walk(pread, log_id, start, size):
                            yield from _frame_items(name, log_id, frame)
                        return
                    except BadFrame as error:
                        bad = error
                yield self._stop(file_name, bad.offset, bad.seq, bad.detail, size - bad.offset)
                if self._damage is None:
                    return
                found = _next_frame(pread(size - bad.offset, bad.offset), log_id, bad.seq)
                if found is None:
                    return
                start = yield from self._unverified(name, pread, bad.offset + found, size)
                log_id = FRAME.unpack(pread(FRAME.size, bad.offset + found))[0]  # type: ignore[index]
        except OSError as error:
            yield self._stop(file_name, 0, first_seq, f"cannot be read: {error}", 0)
        finally:
            self._files.close(fd)

    def _stop(self, file_name: str, offset: int, seq: int, detail: str, size: int) -> Item:
        """The end of what verifies: damage, or the tail that a start would cut."""
        self._shown.add((file_name, offset))
        kind = "torn" if self._damage is None else "damage"
        facts = {"detail": detail, "bytes": size}
        return Item(f"{self._file}/{file_name}", kind, offset, seq, facts)

    def _unverified(
        self, name: str, pread: Pread, at: int, size: int
    ) -> Generator[Item, None, Place]:
        """The first frame after damage; answers where the next one starts."""
        head = FRAME.unpack(pread(FRAME.size, at))
        assert head is not None
        log_id, first_seq, count, length, durable, chain, crc = head
        end = at + FRAME.size + length
        place = Place(first_seq, at, 0, 0)
        frame = Frame(place, count, end, durable, chain, crc, None, None)
        kind = "frame" if count else "seal"
        yield Item(name, kind, at, first_seq, {**_frame_facts(log_id, frame), "verified": False})
        try:
            # No more than there is: a length may ask for a gigabyte that the file does not have.
            body = pread(min(length, size - at - FRAME.size), at + FRAME.size)
            _, events = decode_body(body, with_origin=at == 0)
        except ValueError:
            events = []
        for seq, event in enumerate(events, start=first_seq):
            yield Item(name, "event", at, seq, {"verified": False}, event)
        return Place(first_seq + count, end, crc, chain)


def _frame_facts(log_id: bytes, frame: Frame) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "log_id": log_id.hex(),
        "events": frame.events,
        "bytes": frame.end - frame.place.offset,
        "durable": frame.durable,
        "chain": frame.chain,
    }
    if frame.origin is not None:
        facts |= {"run": frame.origin.run, "parent": frame.origin.parent}
    return facts


def _frame_items(name: str, log_id: bytes, frame: Frame) -> Iterator[Item]:
    at, seq = frame.place.offset, frame.place.first_seq
    events = events_of(frame)
    yield Item(name, "frame" if frame.events else "seal", at, seq, _frame_facts(log_id, frame))
    for number, event in enumerate(events, start=seq):
        yield Item(name, "event", at, number, {}, event)


def _next_frame(data: bytes, log_id: bytes | None, seq: int) -> int | None:
    """Offset in `data`, past its start, of the next whole header of the log from `seq` on."""
    at = data.find(FRAME.prefix, 1)
    while at >= 0:
        head = FRAME.unpack(data, at)
        if head is not None and log_id in (None, head[0]) and head[1] >= seq:
            return at
        at = data.find(FRAME.prefix, at + 1)
    return None
