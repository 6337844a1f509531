"""Tests that need the kernel's file systems: root, loop devices, FUSE. Elsewhere they skip."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

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


@pytest.fixture
def quota(can_mount: None) -> Iterator[tuple[Path, Callable[[str], str]]]:
    """A folder with a quota, and how to set it: `limit("4M")`. The kernel's ext4 and XFS may come
    without theirs; btrfs has its own."""
    if "btrfs" not in Path("/proc/filesystems").read_text():
        pytest.skip("no btrfs in this kernel: a quota needs one")
    if shutil.which("mkfs.btrfs") is None:
        pytest.skip("mkfs.btrfs missing: apt-get install btrfs-progs")
    with volume.btrfs() as path:
        volume.sh("btrfs", "quota", "enable", str(path))
        volume.sh("btrfs", "subvolume", "create", str(path / "limited"))
        yield (
            path / "limited",
            lambda size: volume.sh("btrfs", "qgroup", "limit", size, str(path / "limited")),
        )


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder for tests that write much and count on no disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, ignore_cleanup_errors=True) as path:
        yield Path(path)
