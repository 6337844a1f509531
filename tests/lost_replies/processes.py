"""A store and an agent as processes of their own, on loopback, with files that a test gave them.

Always: `start` returns when the service is ready; `kill` is SIGKILL to the one process started here
(its child dies with it); a service that is started again keeps its port and its data.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import requests

__all__ = ["AgentProcess", "ServiceProcess", "StoreProcess"]

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 30.0  # a second on a quiet machine
STOP_TIMEOUT_S = 20.0


class ServiceProcess:
    """``with StoreProcess(folder) as store: StoreClient(store.url)``."""

    def __init__(self, module: str, log: Path, env: Mapping[str, str]) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self._module = module
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Returns when it is ready."""
        sources = [str(ROOT / name) for name in ("shared", "store_service", "agent_service")]
        inherited = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG")}
        env = {**inherited, "PYTHONPATH": os.pathsep.join(sources), **self._env}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module], env=env, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self._module} ended at once: {self._last_words()}")
            with contextlib.suppress(requests.RequestException):
                if requests.get(f"{self.url}/readyz", timeout=1).status_code == 200:
                    return self
            time.sleep(0.02)
        self.kill()
        raise RuntimeError(f"{self._module} was not ready in time: {self._last_words()}")

    def kill(self) -> None:
        """SIGKILL, as a crash; nothing to do where it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def stop(self) -> int:
        """SIGTERM, as a planned stop; the exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(STOP_TIMEOUT_S)
        self._process = None
        return code

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


class StoreProcess(ServiceProcess):
    """`python -m stillrun_store` on a data directory below `folder`."""

    def __init__(self, folder: Path, **env: str) -> None:
        super().__init__("stillrun_store", folder / "store.txt", env)
        self._env |= {
            "STORE_DATA": str(folder / "data"),
            "STORE_LISTEN": f"127.0.0.1:{self.port}",
        }


class AgentProcess(ServiceProcess):
    """`python -m stillrun_agent` for a store's URL, which may be that of a proxy before it."""

    def __init__(self, folder: Path, store_url: str, modules: Path, **env: str) -> None:
        super().__init__("stillrun_agent", folder / "agent.txt", env)
        self._env |= {
            "STORE_URL": store_url,
            "AGENT_LISTEN": f"127.0.0.1:{self.port}",
            "AGENT_MODULES": str(modules),
        }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
