"""What these tests mount is gone when they are, however they end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import services
from power import volume
from power.volume import FILE_SYSTEMS, PREFIX

HOLDER = """
import sys, time
from power.volume import Volume
with Volume(sys.argv[1]) as volume:
    open(volume.path / "file", "w").write("something in the cache")
    print(volume.path, flush=True)
    time.sleep(600)
"""


def left_behind(folder: Path) -> list[str]:
    """Mounts and loop devices below the folder."""
    loops = volume.sh("losetup", "--list", "--noheadings", "-O", "BACK-FILE").splitlines()
    mounts = Path("/proc/mounts").read_text().splitlines()
    return [line for line in (*loops, *mounts) if f"{folder}/" in line]


@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_the_next_run_removes_what_a_killed_one_left(file_system, new_volume):
    assert new_volume(file_system)
    paths = os.pathsep.join(map(str, services.PATHS))
    command = [sys.executable, "-c", HOLDER, file_system]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE
    ) as holder:
        folder = Path(holder.stdout.readline().decode().strip()).parent
        assert folder.name.startswith(f"{PREFIX}{holder.pid}-")
        assert len(left_behind(folder)) == 3
        volume.clean_up()
        assert len(left_behind(folder)) == 3  # its owner lives
        holder.kill()
    volume.clean_up()
    assert left_behind(folder) == [] and not folder.exists()
