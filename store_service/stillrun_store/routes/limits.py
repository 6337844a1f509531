"""How many requests may wait at once: polls and streams hold a thread each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from stillrun.errors import Overloaded

__all__ = ["THREADS", "Uploads", "Waiting"]

THREADS = 64  # of the server
MAX_UPLOADS = 32  # with MAX_WAITING less than THREADS: health and reads always find a thread
UPLOAD_PATIENCE_S = 0.2  # a body that is here is read in microseconds
MAX_WAITING = 24  # polls and streams together: the others must find a thread


class Uploads:
    """Places for requests whose body is still arriving: a thread cannot leave a slow sender."""

    def __init__(self) -> None:
        self._places = threading.Semaphore(MAX_UPLOADS)

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Hold one place for the length of a block; a burst may wait for one, but not for long."""
        if not self._places.acquire(timeout=UPLOAD_PATIENCE_S):
            raise Overloaded(f"{MAX_UPLOADS} bodies arrive already", limit=MAX_UPLOADS)
        try:
            yield
        finally:
            self._places.release()


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
