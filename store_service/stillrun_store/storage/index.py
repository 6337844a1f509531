"""The index: what a start would else have to read from every log.

Always: derived. It states what was durable when it was written; it may be behind, missing or
damaged, and then logs are read instead. Only the upkeep thread and `close` write it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from .durable import FailStop, replace_file, write_all
from .files import Files
from .format import IndexRecord, decode_index, encode_index

__all__ = ["Index"]

REWRITE_ABOVE_BYTES = 1 << 20  # smaller files are not worth a rewrite while running

logger = logging.getLogger(__name__)


class Index:
    """index/runs.idx. Not thread safe: its callers take turns."""

    def __init__(self, files: Files, directory: Path, fail_stop: FailStop) -> None:
        self._files = files
        self._path = directory / "runs.idx"
        self._fail_stop = fail_stop
        self._fd: int | None = None
        self._is_whole = False
        self._size_bytes = 0
        self._live_bytes: dict[str, int] = {}  # by directory: size of its last record

    def load(self) -> dict[str, IndexRecord]:
        """The last record of each directory; ends at the first record that does not verify."""
        try:
            data = self._files.read(self._path)
        except FileNotFoundError:
            return {}
        except OSError as error:
            logger.warning("the index cannot be read, all logs are: %s", error)
            return {}
        records = {}
        for record, end in decode_index(data):
            records[record.directory] = record
            self._live_bytes[record.directory] = end - self._size_bytes
            self._size_bytes = end
        self._is_whole = self._size_bytes == len(data)
        return records

    def append(self, records: Iterable[IndexRecord], all_records: Iterable[IndexRecord]) -> None:
        """Add what changed; rewrite from `all_records` when more than half is superseded."""
        parts = []
        for record in records:
            data = encode_index(record)
            self._live_bytes[record.directory] = len(data)
            parts.append(data)
        data = b"".join(parts)
        grown = self._size_bytes + len(data)
        if self._fd is None and self._is_whole:
            self._fd = self._files.open_rw(self._path)  # go on behind the last record
        if self._fd is None or grown > REWRITE_ABOVE_BYTES + 2 * sum(self._live_bytes.values()):
            self.rewrite(all_records)
            return
        # What a failed write leaves is overwritten by the next one.
        write_all(self._files, self._fd, data, self._size_bytes)
        self._size_bytes = grown

    def rewrite(self, records: Iterable[IndexRecord]) -> None:
        """The whole index anew."""
        self.close()
        encoded = [(record.directory, encode_index(record)) for record in records]
        self._live_bytes = {directory: len(data) for directory, data in encoded}
        data = b"".join(data for _, data in encoded)
        replace_file(
            self._files, self._fail_stop, self._path, self._path.with_suffix(".idx.tmp"), data
        )
        # Known before it is opened: without a descriptor for it the next append goes on there.
        self._size_bytes, self._is_whole = len(data), True
        self._fd = self._files.open_rw(self._path)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._files.close(fd)
