"""What a snapshot holds: a state, the digests of the ids up to it, and what it is checked by.

Always: deleting every snapshot changes no answer (I3); one that cannot be read, or is of another
schema version, is ignored and the state is rebuilt from the log; it is never an empty state.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from stillrun import codec
from stillrun.errors import StillrunError
from stillrun.schema import SCHEMA_VERSION
from stillrun.state import State

from .runs import Ids
from .storage import Engine

__all__ = ["Base", "OtherSchema", "packed", "parts", "read"]


@dataclass(frozen=True, slots=True)
class Base:
    """What a fold starts from: a snapshot's content, its seq and the bytes of its file."""

    state: State
    ids: Ids
    seq: int
    bytes: int


class OtherSchema(ValueError):
    """A snapshot of another schema version: no fault, and of no use."""

    def __init__(self, version: Any) -> None:
        super().__init__(f"schema version {version}")
        self.is_older = isinstance(version, int) and version < SCHEMA_VERSION


def read(engine: Engine, run: str, at_most_seq: int) -> Base | None:
    """The newest snapshot at or below a seq that this code can use."""
    seq = at_most_seq
    while seq > 0:
        found = engine.get_snapshot(run, seq)
        if found is None:
            return None
        seq, body = found
        try:
            state, ids = _unpacked(body)
            if state.control.seq == seq and len(ids) == seq:
                size = next((i.bytes for i in engine.snapshots(run) if i.seq == seq), len(body))
                return Base(state, ids, seq, size)
            wrong = "it does not fit its seq"
        except OtherSchema as error:
            wrong = str(error)
            if error.is_older:
                # Those before it are no newer: there may be thousands, each to be read for nothing.
                engine.ignore_snapshot(run, seq, wrong)
                return None
        except (StillrunError, TypeError, ValueError, LookupError) as error:
            wrong = str(error)
        engine.ignore_snapshot(run, seq, wrong)
        seq -= 1
    return None


def packed(state: State, ids: bytes) -> bytes:
    """The body of a snapshot of this state."""
    encoded = codec.encode_state(state)
    return codec.encode_msgpack(
        {
            "schema_version": SCHEMA_VERSION,
            "reducer": state.control.reducer,
            "digest": hashlib.blake2b(encoded, digest_size=16).digest(),
            "state": encoded,
            "ids": ids,
        }
    )


def parts(body: bytes) -> tuple[bytes, bytes]:
    """State and ids of a snapshot, packed; OtherSchema, ValueError, TypeError, LookupError or a
    StillrunError if it holds none that this code has written."""
    fields: Any = codec.decode_trusted(body)
    if fields["schema_version"] != SCHEMA_VERSION:
        raise OtherSchema(fields["schema_version"])
    encoded: bytes = fields["state"]
    ids: bytes = fields["ids"]
    if hashlib.blake2b(encoded, digest_size=16).digest() != fields["digest"]:
        raise ValueError("the digest of its state differs")
    return encoded, ids


def _unpacked(body: bytes) -> tuple[State, Ids]:
    encoded, ids = parts(body)
    return codec.decode_state(encoded), Ids(ids)
