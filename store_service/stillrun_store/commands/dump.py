"""`dump DIR`: a data directory as JSON lines, one for each thing in it. Reads only."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from stillrun import codec
from stillrun.errors import StillrunError
from stillrun.values import rfc3339

from ..storage import OsFiles, StorageError
from ..storage.survey import Item, survey

__all__ = ["add_arguments", "run"]

RANGED = ("frame", "event", "seal", "snapshot")  # what --from and --to choose from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument("directory", type=Path, help="the data directory; the service may be down")
    parser.add_argument("--run", help="only what belongs to this run")
    parser.add_argument("--from", dest="first", type=int, default=1, metavar="SEQ")
    parser.add_argument("--to", dest="last", type=int, metavar="SEQ", help="inclusive")
    parser.add_argument("--states", action="store_true", help="show the states in snapshots")


def run(given: argparse.Namespace) -> int:
    """Print the lines; 1 if damage was met, 2 if there is no such directory."""
    damaged = False
    try:
        for item in survey(OsFiles(), given.directory, given.run):
            damaged = damaged or item.kind == "damage"
            if _is_wanted(item, given.first, given.last):
                sys.stdout.buffer.write(_line(item, states=given.states))
    except (OSError, StorageError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        sys.stderr.write(f"dump: {given.directory} cannot be read: {error}\n")
        return 2
    return 1 if damaged else 0


def _is_wanted(item: Item, first: int, last: int | None) -> bool:
    if item.kind not in RANGED or item.seq is None:
        return True
    end = item.seq + max(item.facts.get("events", 1), 1) - 1
    return end >= first and (last is None or item.seq <= last)


def _line(item: Item, *, states: bool) -> bytes:
    fields = {"file": item.file, "kind": item.kind, "offset": item.offset, "seq": item.seq}
    shown: dict[str, Any] = {**fields, **item.facts}
    if item.payload is None:
        return codec.encode_json(shown, compact=True)
    try:
        if item.kind == "event":
            shown["content"] = _event(item.payload)
        else:
            shown["content"] = _snapshot(item.payload, states=states)
        return codec.encode_json(shown, compact=True)
    except (StillrunError, TypeError, ValueError, LookupError):
        # Not what this code writes: the bytes as they are.
        return codec.encode_json(shown | {"content": item.payload}, compact=True)


def _event(payload: bytes) -> dict[str, Any]:
    """As it stands in the file: of whatever schema version, not read forward."""
    event_id, kind, schema_version, at_ms, epoch, data = codec.decode_trusted(payload)
    return {
        "id": event_id.hex(),
        "type": kind,
        "schema_version": schema_version,
        "at": rfc3339(at_ms),
        "epoch": epoch,
        "data": data,
    }


def _snapshot(body: bytes, *, states: bool) -> dict[str, Any]:
    fields: dict[str, Any] = codec.decode_trusted(body)
    if not isinstance(fields, dict):
        raise TypeError("a snapshot is a map")
    state = fields.pop("state", None)
    if states:
        fields["state"] = codec.decode_trusted(state) if isinstance(state, bytes) else state
    return fields
