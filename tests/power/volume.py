"""A file system on a disk that can lose power, or fail a flush or a write.

Always: what a `with` block made is unmounted, detached and removed when it ends, and what a killed
test run left behind when the next one begins: the folders, and with them mounts and loop devices,
are known by PREFIX and the id of the process that made them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import services
from services import eventually

__all__ = [
    "FILE_SYSTEMS",
    "MODES",
    "PREFIX",
    "Volume",
    "btrfs",
    "clean_up",
    "folder",
    "missing",
    "no_volume",
    "sh",
    "tmpfs",
]

PREFIX = "stillrun-power-"
MODES = ("none", "some", "prefix")  # of the unflushed: nothing; any sectors; the writes up to one
MIB = 1 << 20
FILE_SYSTEMS = {  # how to make it, its size, mount options. XFS takes no less than 300 MiB.
    "ext4": (["mkfs.ext4", "-q", "-E", "nodiscard"], 64 * MIB, "noinit_itable,errors=remount-ro"),
    "xfs": (["mkfs.xfs", "-q", "-K"], 320 * MIB, ""),
}


def missing() -> str | None:
    """Why nothing can be mounted here; None if it can."""
    if os.geteuid() != 0:
        return "only root mounts"
    with tempfile.TemporaryDirectory() as path:
        if subprocess.run(["mount", "-t", "tmpfs", "none", path], capture_output=True).returncode:
            return "this root may not (a container without the right to)"
        sh("umount", path)
    return None


def no_volume(file_system: str) -> str | None:
    """Why no `Volume` can be made where mounts can; None if one can."""
    for device in ("/dev/loop-control", "/dev/fuse"):
        if not os.access(device, os.R_OK | os.W_OK):
            return f"there is no {device}"
    programs = ("losetup", FILE_SYSTEMS[file_system][0][0])
    if absent := [name for name in programs if shutil.which(name) is None]:
        return f"{', '.join(absent)} missing: apt-get install e2fsprogs xfsprogs fuse3"
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError) as error:  # OSError: the package is there, but no libfuse
        return f"no FUSE from Python: {error}"
    return None


def sh(*command: str) -> str:
    """What the command prints; AssertionError with what it complains about."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
    return done.stdout


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder for mounts, gone at the end with all that is mounted below it."""
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    try:
        yield path
    finally:
        _remove(path)


def clean_up() -> None:
    """Remove what runs of these tests left behind that are no more."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid = path.name.removeprefix(PREFIX).partition("-")[0]
        if not Path(f"/proc/{pid}").exists():
            _remove(path)


def _remove(path: Path) -> None:
    """Lazily, newest mount first: a file still open somewhere must not keep it."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    below = [mount for mount in mounts if mount.startswith(f"{path}/")]
    for mount in reversed([mount for mount in below if not mount.endswith("/disk")]):
        subprocess.run(["umount", "-l", mount], capture_output=True)
    for line in sh("losetup", "--list", "--noheadings", "-O", "NAME,BACK-FILE").splitlines():
        device, _, backing = line.strip().partition(" ")
        if backing.strip().startswith(f"{path}/"):
            subprocess.run(["losetup", "-d", device], capture_output=True)
    for mount in reversed([mount for mount in below if mount.endswith("/disk")]):
        subprocess.run(["umount", "-l", mount], capture_output=True)
    for name in ("disk", "mnt"):  # never more than empty mount points: what is mounted stays whole
        with contextlib.suppress(OSError):
            (path / name).rmdir()
    with contextlib.suppress(OSError):
        path.rmdir()


@contextlib.contextmanager
def tmpfs(options: str) -> Iterator[Path]:
    """`with tmpfs("size=8m,nr_inodes=100") as path:`"""
    with folder() as root:
        path = root / "mnt"
        path.mkdir()
        sh("mount", "-t", "tmpfs", "-o", options, "none", str(path))
        yield path


@contextlib.contextmanager
def btrfs() -> Iterator[Path]:
    """A volume of 200 MiB on a plain file: it loses no power, but has quotas."""
    with folder() as root, tempfile.TemporaryDirectory() as images:
        path, image = root / "mnt", Path(images) / "image"
        path.mkdir()
        with image.open("wb") as file:
            file.truncate(200 * MIB)
        sh("mkfs.btrfs", "-q", str(image))
        sh("mount", "-o", "loop", str(image), str(path))
        yield path


class Volume:
    """`with Volume("ext4") as volume:` mounted at `volume.path`, on a disk of its own."""

    def __init__(self, file_system: str) -> None:
        self.make, self.size_bytes, self.options = FILE_SYSTEMS[file_system]
        self._ending = contextlib.ExitStack()
        self._loop: str | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as ending:
            root = ending.enter_context(folder())
            self.path, self._disk = root / "mnt", root / "disk"
            self.path.mkdir()
            self._disk.mkdir()
            ending.enter_context(self._served())
            self._attach()
            sh(*self.make, str(self._loop))
            self.mount()
            self._ending = ending.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.close()

    @contextlib.contextmanager
    def _served(self) -> Iterator[None]:
        command = [sys.executable, "-m", "power.disk", str(self._disk), str(self.size_bytes)]
        paths = os.pathsep.join(map(str, services.PATHS))
        with tempfile.TemporaryFile() as said:
            disk = subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": paths}, stdout=said, stderr=said
            )
            try:

                def is_served() -> bool:
                    ended = os.pread(said.fileno(), 1 << 16, 0).decode(errors="replace")
                    assert disk.poll() is None, f"the disk ended: {ended}"
                    return (self._disk / "image").exists()

                eventually(is_served, "the disk is there")
                yield
            finally:
                with contextlib.suppress(AssertionError):
                    self._detach()
                subprocess.run(["umount", "-l", str(self._disk)], capture_output=True)
                disk.kill()
                disk.wait()

    # --- what a test does to it

    def order(self, line: str) -> None:
        """See `VolatileDisk.order`."""
        fd = os.open(self._disk / "control", os.O_WRONLY)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)

    def counts(self) -> dict[str, Any]:
        """What the disk has done: writes, flushes, cuts, failed, lost (sectors)."""
        fd = os.open(self._disk / "control", os.O_RDONLY)
        try:
            found: dict[str, Any] = json.loads(os.read(fd, 4096))
        finally:
            os.close(fd)
        return found

    def cut(self, mode: str, seed: object = 0, *, writes: int = 0) -> None:
        """The power goes, now or with a later write. End what uses the volume, then `power_on`."""
        self.order(f"cut {mode} {seed} {writes}")

    def power_on(self) -> None:
        """A machine that has booted again: nothing in any cache, the journal replayed."""
        self.unmount()
        self.order("on")
        self._attach()
        self.mount()

    def make_read_only(self) -> None:
        """What ext4 does by itself when it finds an error in its own data."""
        loop = str(self._loop).removeprefix("/dev/")
        Path(f"/sys/fs/ext4/{loop}/trigger_fs_error").write_text("a test")

    def mount(self) -> None:
        options = ["-o", self.options] if self.options else []
        sh("mount", *options, str(self._loop), str(self.path))

    def unmount(self) -> None:
        """A killed process may be a moment from gone."""
        command = ["umount", str(self.path)]
        eventually(
            lambda: subprocess.run(command, capture_output=True).returncode == 0,
            f"{self.path} is unused",
        )
        self._detach()
        # A container that starts at this moment has a copy of all mounts for a while: until it lets
        # go the old file system lives on, and XFS refuses a second one of the same name.
        image = str(self._disk / "image")
        eventually(lambda: not sh("losetup", "-j", image), "the loop device is free", 60.0)

    def _attach(self) -> None:
        self._loop = sh("losetup", "--find", "--show", str(self._disk / "image")).strip()

    def _detach(self) -> None:
        if self._loop is not None:
            loop, self._loop = self._loop, None
            sh("losetup", "-d", loop)
