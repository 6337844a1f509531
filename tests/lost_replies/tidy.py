"""The processes of `services`, with their output files closed when they are done with."""

from __future__ import annotations

import contextlib
from typing import Any, Self

from services import AgentProcess, Service, StoreProcess, WorldProcess

__all__ = ["Agent", "Store", "World", "crash"]


class _Tidy(Service):
    def spawn(self) -> Self:
        self._close()
        return super().spawn()

    def __exit__(self, *ended: Any) -> None:
        super().__exit__(*ended)
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(AttributeError):  # nothing was started yet
            self._out.close()


class Store(_Tidy, StoreProcess):
    """`with Store(data) as store`."""


class Agent(_Tidy, AgentProcess):
    """`with Agent(store.url, modules) as agent`."""


class World(_Tidy, WorldProcess):
    """`with World() as world`."""


def crash(service: Service) -> None:
    """SIGKILL, then the same port and the same data again."""
    service.kill_all()
    service.start()
