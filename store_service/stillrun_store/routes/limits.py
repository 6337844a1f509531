"""How many requests may wait at once: polls and streams hold a thread each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from stillrun.errors import Overloaded

__all__ = ["THREADS", "Waiting"]

THREADS = 64  # of the server
MAX_WAITING = 24  # polls and streams together: the others must find a thread


class Waiting:
    """Places for requests that wait; one more is refused at once, with Retry-After."""

    def __init__(self) -> None:
        self._places = threading.Semaphore(MAX_WAITING)

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Hold one place for the length of a block."""
        give_back = self.take()
        try:
            yield
        finally:
            give_back()

    def take(self) -> Callable[[], None]:
        """Hold one place until what is answered is called; calling it again does nothing."""
        if not self._places.acquire(blocking=False):
            raise Overloaded(f"{MAX_WAITING} requests wait already", limit=MAX_WAITING)
        held = [self._places]

        def give_back() -> None:
            with contextlib.suppress(IndexError):
                held.pop().release()

        return give_back
