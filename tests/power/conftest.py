"""Tests that need the kernel's file systems: root, loop devices, FUSE. Elsewhere they skip."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from power import volume
from power.volume import Volume


@pytest.fixture(scope="session")
def can_mount() -> None:
    """Skip where nothing can be mounted, and remove what a killed run has left behind."""
    reason = volume.missing()
    if reason is not None:
        pytest.skip(f"no mounts here: {reason}")
    volume.clean_up()


@pytest.fixture
def new_volume(can_mount: None) -> Callable[[str], Volume]:
    """`with new_volume("ext4") as volume:`, or a skip that says what is missing."""

    def made(file_system: str) -> Volume:
        reason = volume.no_volume(file_system)
        if reason is not None:
            pytest.skip(f"no volume that loses power: {reason}")
        return Volume(file_system)

    return made
