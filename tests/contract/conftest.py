"""A store with its clocks in the test's hands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contract.door import Door


@pytest.fixture
def open_door(tmp_path: Path) -> Iterator[Callable[..., Door]]:
    """`open_door(snapshot_every=5)`: closed at the end."""
    doors: list[Door] = []

    def opened(name: str = "data", **options: Any) -> Door:
        doors.append(Door(tmp_path / name, **options))
        return doors[-1]

    yield opened
    for door in doors:
        door.close()


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """One door for all tests of a module that only look, or are refused."""
    door = Door(tmp_path_factory.mktemp("still"))
    yield door
    door.close()


@pytest.fixture
def door(open_door: Callable[..., Door]) -> Door:
    return open_door()


@pytest.fixture
def volume(door: Door, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`volume(size, free)`: what the file system says from now on, in bytes and inodes."""

    def fill(size: int, free: int, files: int = 1_000_000, free_files: int = 1_000_000) -> None:
        found = SimpleNamespace(f_frsize=1, f_blocks=size, f_bavail=free)
        found.f_files, found.f_favail = files, free_files
        monkeypatch.setattr(door.store.engine._files, "volume", lambda path: found)
        door.store.space._known_until = 0.0

    return fill
