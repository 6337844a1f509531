"""A world in a process of its own, for tests that kill it or need a real connection."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import requests

__all__ = ["WorldProcess"]

START_TIMEOUT_S = 20.0  # granian needs half a second; a loaded CI machine more
STOP_TIMEOUT_S = 10.0


class WorldProcess:
    """``with WorldProcess(data) as world: requests.get(world.url + "/ledger")``.

    ``start`` after ``kill`` or ``stop`` uses the same port and the same data."""

    def __init__(self, data: Path | None = None, port: int | None = None) -> None:
        self.port = port or _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._data = data
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        """Returns when the world answers."""
        environ = {**os.environ, "WORLD_LISTEN": f"127.0.0.1:{self.port}"}
        environ.pop("WORLD_DATA", None)
        if self._data is not None:
            environ["WORLD_DATA"] = str(self._data)
        folder = Path(__file__).resolve().parent.parent
        process = subprocess.Popen(
            [sys.executable, "-m", "world"], env=environ, cwd=folder, text=True
        )
        self._process = process
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError(f"the world ended at once with {process.returncode}")
            try:
                requests.get(f"{self.url}/healthz", timeout=1).raise_for_status()
                return self
            except requests.RequestException:
                time.sleep(0.02)
        self.kill()
        raise RuntimeError(f"the world did not answer within {START_TIMEOUT_S:g} s")

    def kill(self) -> None:
        """SIGKILL; the worker dies with its parent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that is not enough."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
