"""What can go wrong in the storage engine, and what the caller may do next.

StorageError
├── DataDirBusy        another process holds the directory: stop it, or start later
├── DataDirUnusable    the directory cannot be used as it is: a person fixes it (path, reason)
│   └── NoDescriptor   too many open files, for now; nothing was written
├── UnsupportedFormat  files of another format version: use the code that wrote them
├── RunExists          create: the id is taken
├── NoSuchRun          the id was never created
│   └── DroppedRun     it was, and was dropped; it is never free again
├── DamagedLog         this run is refused from that seq on; others work (run, seq, detail)
├── DiskFull           nothing was written; the same call works once there is space
├── OutcomeUnknown     the disk failed: written or not, nobody knows; the process must end
├── BadBackup          not made or not restored as asked: the text names the file or folder
└── BadBlob            bytes and hash do not belong together
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "BadBackup",
    "BadBlob",
    "DamagedLog",
    "DataDirBusy",
    "DataDirUnusable",
    "DiskFull",
    "DroppedRun",
    "NoDescriptor",
    "NoSuchRun",
    "OutcomeUnknown",
    "RunExists",
    "StorageError",
    "UnsupportedFormat",
]


class StorageError(Exception):
    """Base of everything the engine raises by design (misuse is ValueError)."""


class DataDirBusy(StorageError):
    """Another process holds the lock of this data directory."""


class DataDirUnusable(StorageError):
    """The data directory cannot be read or written as it is."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class NoDescriptor(DataDirUnusable):
    """No file can be opened, for now: this process, or the machine, has too many open."""


class UnsupportedFormat(StorageError):
    """The directory was written by other code than this; nothing was written to it (I9)."""


class RunExists(StorageError):
    """A run of this id exists; ids are never reused."""


class NoSuchRun(StorageError):
    """No run of this id exists."""


class DroppedRun(NoSuchRun):
    """The run was dropped; ids are never reused."""

    def __init__(self, run: str) -> None:
        super().__init__(f"run {run} was dropped")
        self.run = run


class DamagedLog(StorageError):
    """The log of `run` cannot be trusted from `seq` on; its bytes were left as they are (I11)."""

    def __init__(self, run: str, seq: int, detail: str) -> None:
        super().__init__(f"run {run}: damaged at seq {seq}: {detail}")
        self.run = run
        self.seq = seq
        self.detail = detail


class DiskFull(StorageError):
    """The volume takes no more; nothing was written, and appends resume by themselves.

    `lacking`: space (which may be inodes), quota, file size (a limit of the process), or write
    access (it was made read-only while it was in use). `is_partial`: a part is in the file, and
    whoever raises this to the caller of the engine has seen to it."""

    def __init__(self, detail: str, lacking: str = "space", *, is_partial: bool = False) -> None:
        super().__init__(detail)
        self.lacking = lacking
        self.is_partial = is_partial


class OutcomeUnknown(StorageError):
    """A sync or an undo failed. Never retried, never acknowledged; every later write is refused."""


class BadBackup(StorageError):
    """A backup cannot be made there, or is not whole; nothing was published."""


class BadBlob(StorageError):
    """The bytes do not have the hash they are named by."""
