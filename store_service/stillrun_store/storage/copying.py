"""Copying files so that a copy is what was read, and durable."""

from __future__ import annotations

import hashlib
from pathlib import Path

from .durable import write_all
from .files import Files
from .manifest import CHUNK_BYTES

__all__ = ["Unreadable", "copy_bytes", "copy_file", "open_source", "sync_tree"]


class Unreadable(Exception):
    """The disk does not give out what is to be copied; not to be taken for a target that fails."""


def open_source(files: Files, path: Path) -> int:
    """Open a file to copy. FileNotFoundError; Unreadable."""
    try:
        return files.open_read(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(str(error)) from error


def copy_bytes(files: Files, source: int, size: int, target: Path) -> str:
    """The first `size` bytes of an open file (fewer if it has fewer) as a new file, synced; their
    SHA-256. Unreadable; DiskFull or OSError of the target."""
    digest = hashlib.sha256()
    fd = files.open_new(target)
    try:
        at = 0
        while at < size:
            try:
                data = files.pread(source, min(CHUNK_BYTES, size - at), at)
            except OSError as error:
                raise Unreadable(str(error)) from error
            if not data:
                break
            write_all(files, fd, data, at)
            digest.update(data)
            at += len(data)
        files.fsync(fd)
    finally:
        files.close(fd)
    return digest.hexdigest()


def copy_file(files: Files, source: Path, target: Path) -> str:
    """All of a file. Errors as of `open_source` and `copy_bytes`."""
    fd = open_source(files, source)
    try:
        return copy_bytes(files, fd, files.size(fd), target)
    finally:
        files.close(fd)


def sync_tree(files: Files, folder: Path) -> None:
    """Make the entries of every directory below durable, and those of `folder`."""
    for entry in files.scan(folder):
        if entry.is_dir:
            sync_tree(files, folder / entry.name)
    files.fsync_dir(folder)
