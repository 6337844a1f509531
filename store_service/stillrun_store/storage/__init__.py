"""The storage engine: numbered opaque events in checksummed files. It knows no event type.

The files are drawn in FORMAT.md. All file calls are in `files`, all bytes in `format`."""

from .checking import BLOB_FOLDERS, Extent, Fault, FileChecks
from .collecting import uncollected
from .engine import Engine
from .errors import (
    BadBackup,
    BadBlob,
    DamagedLog,
    DataDirBusy,
    DataDirUnusable,
    DiskFull,
    DroppedRun,
    NoSuchRun,
    OutcomeUnknown,
    RunExists,
    StorageError,
    UnsupportedFormat,
)
from .files import Files, OsFiles
from .info import (
    Appended,
    Damage,
    RecoveryReport,
    RunInfo,
    Sizes,
    SnapshotFault,
    SnapshotInfo,
    TornTail,
    VolumeSpace,
)

__all__ = [
    "BLOB_FOLDERS",
    "Appended",
    "BadBackup",
    "BadBlob",
    "Damage",
    "DamagedLog",
    "DataDirBusy",
    "DataDirUnusable",
    "DiskFull",
    "DroppedRun",
    "Engine",
    "Extent",
    "Fault",
    "FileChecks",
    "Files",
    "NoSuchRun",
    "OsFiles",
    "OutcomeUnknown",
    "RecoveryReport",
    "RunExists",
    "RunInfo",
    "Sizes",
    "SnapshotFault",
    "SnapshotInfo",
    "StorageError",
    "TornTail",
    "UnsupportedFormat",
    "VolumeSpace",
    "uncollected",
]
