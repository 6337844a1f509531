"""Services as processes on loopback ports, for tests that kill them or need a real connection.

Always: `start` returns when the service answers, `start` after `kill` or `stop` uses the same port
and the same data; nothing outlives its `with` block.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import requests

__all__ = ["AgentProcess", "Service", "StoreProcess", "WorldProcess", "eventually", "free_port"]

START_TIMEOUT_S = 30.0  # granian needs half a second; a loaded CI machine more
STOP_TIMEOUT_S = 30.0  # generous: what a stop may take is the service's to promise

TESTS = Path(__file__).resolve().parent
PATHS = [TESTS, *(TESTS.parent / name for name in ("shared", "store_service", "agent_service"))]


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eventually(holds: Callable[[], Any], what: str, timeout_s: float = 30.0) -> Any:
    """What `holds` answers once it is true; an AssertionError that names `what` if it never is."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = holds()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"never happened within {timeout_s:g} s: {what}")


class Service:
    """`with StoreProcess(data) as store: requests.get(store.url)`; `output` is what it wrote."""

    module = ""
    listen = ""
    path = "/healthz"

    def __init__(self, *, port: int | None = None, **settings: str | Path) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.settings = {name: str(value) for name, value in settings.items()}
        self.process: subprocess.Popen[bytes] | None = None
        self._out: Any = None
        self._written = ""

    def environment(self) -> dict[str, str]:
        """The variables that a container would get, and where the sources are."""
        python_path = os.pathsep.join(map(str, PATHS))
        own = {"PYTHONPATH": python_path, self.listen: f"127.0.0.1:{self.port}"}
        return {**os.environ, **own, **self.settings}

    def spawn(self) -> Self:
        """Start it and return at once."""
        assert self.process is None, "it runs already"
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.module],
            env=self.environment(),
            stdout=self._out,
            stderr=self._out,
            cwd=TESTS,
            start_new_session=True,
        )
        return self

    @property
    def output(self) -> str:
        """All that it has written so far."""
        if self._out is not None:
            self._written = os.pread(self._out.fileno(), 1 << 24, 0).decode(errors="replace")
        return self._written

    def start(self) -> Self:
        """Start it and return when it answers."""
        self.spawn()
        return self.ready()

    def ready(self) -> Self:
        """Wait until it answers."""
        process = self.process
        assert process is not None

        def answers() -> bool:
            assert process.poll() is None, f"{self.module} ended: {self.output}"
            try:
                return requests.get(self.url + self.path, timeout=2).ok
            except requests.RequestException:
                return False

        eventually(answers, f"{self.module} answers\n{self.output}", START_TIMEOUT_S)
        return self

    def workers(self) -> list[int]:
        """The process ids of its children."""
        assert self.process is not None
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in found.split()]

    def kill(self) -> None:
        """SIGKILL for the parent; its worker must follow by itself."""
        self._end(signal.SIGKILL)

    def kill_all(self) -> None:
        """SIGKILL for parent and worker at the same instant, as an engine kills a container."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; the exit code. SIGKILL, and -9, if that takes too long."""
        return self._end(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Send a signal to the parent and go on."""
        assert self.process is not None
        self.process.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP for all of it."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGCONT)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """The exit code once it has ended by itself."""
        return self._end(0, timeout_s)

    def _end(self, number: int, timeout_s: float = STOP_TIMEOUT_S) -> int:
        process = self.process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_TIMEOUT_S)
            code = -9
        self.process = None
        self._written = self.output
        self._out.close()
        self._out = None
        return code

    def __enter__(self) -> Self:
        return self if self.process is not None else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print(self.output)
        self.kill_all()


class StoreProcess(Service):
    """`python -m stillrun_store` on a data directory."""

    module, listen, path = "stillrun_store", "STORE_LISTEN", "/readyz"

    def __init__(self, data: Path, **options: Any) -> None:
        super().__init__(STORE_DATA=data, **options)


class AgentProcess(Service):
    """`python -m stillrun_agent` against a store; `modules` is the folder of agents."""

    module, listen = "stillrun_agent", "AGENT_LISTEN"

    def __init__(self, store_url: str, modules: Path, **options: Any) -> None:
        super().__init__(STORE_URL=store_url, AGENT_MODULES=modules, **options)


class WorldProcess(Service):
    """`python -m world`; `data` keeps its ledger over restarts."""

    module, listen = "world", "WORLD_LISTEN"

    def __init__(self, data: Path | None = None, **options: Any) -> None:
        if data is not None:
            options["WORLD_DATA"] = data
        super().__init__(**options)
