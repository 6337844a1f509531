"""Bytes that released versions wrote are read for ever (I9)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stillrun import codec
from stillrun.events import EVENT_TYPES, is_dotted
from stillrun.reducers import fold
from stillrun.schema import SCHEMA_VERSION, upcast

GOLDEN = Path(__file__).parents[2] / "golden"
VERSIONS = [int(path.name[1:]) for path in sorted(GOLDEN.glob("v*"))]


def stored(version: int) -> list[tuple[dict, bytes]]:
    """Each event as JSON showed it when it was written, and its bytes."""
    found = []
    for file in sorted((GOLDEN / f"v{version}").glob("*.msgpack"), reverse=True):
        shown = json.loads(file.with_suffix(".json").read_bytes())
        found += list(zip(shown, codec.decode_msgpack(file.read_bytes()), strict=True))
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_events_of_a_released_version_are_read_as_they_were_meant(version):
    for expected, payload in stored(version):
        event = codec.decode_event(expected["seq"], payload)
        read = json.loads(codec.encode_json(codec.event_to_wire(event)))
        data = upcast(event.type, version, expected["data"])
        # As text: Python holds 1 == 1.0 == True and 0.0 == -0.0.
        assert json.dumps(read, sort_keys=True) == json.dumps(
            expected | {"data": data}, sort_keys=True
        )


@pytest.mark.parametrize("version", VERSIONS)
def test_events_of_a_released_version_can_be_folded(version):
    assert fold(codec.decode_event(old["seq"], payload) for old, payload in stored(version))


def test_every_type_has_golden_bytes():
    types = {old["type"] for version in VERSIONS for old, _ in stored(version)}
    assert {t for t in types if not is_dotted(t)} == set(EVENT_TYPES)
    assert any(is_dotted(t) for t in types)


def test_every_version_has_golden_bytes():
    assert list(range(1, SCHEMA_VERSION + 1)) == VERSIONS
