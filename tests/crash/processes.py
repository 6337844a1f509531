"""The services of these tests: as in tests/services, with deaths that are proved.

Always: a kill counts only when every process of the service is gone and the parent ended by
SIGKILL; a freeze returns when every process of the service has stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import services
from services import StoreProcess, WorldProcess, eventually

__all__ = [
    "LEASE_TTL_S",
    "SHIPPED",
    "AgentProcess",
    "Death",
    "StoreProcess",
    "UnfencedStoreProcess",
    "WorldProcess",
    "freeze",
    "is_alive",
    "kill",
]

LEASE_TTL_S = 1.0  # the shortest an agent takes: each takeover of a test waits for one
SHIPPED = services.TESTS.parent / "agent_service" / "agents"


class UnfencedStoreProcess(StoreProcess):
    """The store without the judgement of epochs: what a control is made of."""

    module = "crash.unfenced_store"


class AgentProcess(services.AgentProcess):
    """An agent with short leases."""

    def __init__(self, store_url: str, modules: Path = SHIPPED, **options: Any) -> None:
        super().__init__(store_url, modules, **{"LEASE_TTL_S": str(LEASE_TTL_S), **options})


@dataclass(frozen=True, kw_only=True)
class Death:
    """Who died, and how."""

    service: str
    pids: tuple[int, ...]
    code: int


def kill(service: services.Service) -> Death:
    """SIGKILL for the parent; returns when it and all its children are gone."""
    process = service.process
    assert process is not None and process.poll() is None, f"{service.module} was dead already"
    pids = (process.pid, *service.workers())
    service.kill()
    eventually(lambda: not any(map(is_alive, pids)), f"{pids} are gone")
    return Death(service=service.module, pids=pids, code=process.returncode)


def freeze(service: services.Service) -> None:
    """SIGSTOP; returns when every process of the service has stopped."""
    assert service.process is not None
    pids = (service.process.pid, *service.workers())
    service.freeze()
    eventually(lambda: all(_state(pid) == "T" for pid in pids), f"{pids} have stopped")


def is_alive(pid: int) -> bool:
    """Whether the process is there; one that has died and was not waited for is not."""
    return _state(pid) is not None


def _state(pid: int) -> str | None:
    """The letter of /proc, or None for a process that is gone or has died."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    letter = text.rpartition(")")[2].split()[0]
    return None if letter in "ZX" else letter
