"""How many requests may wait at once: polls and streams hold a thread each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

from stillrun.errors import Overloaded

from ..turns import Turns

__all__ = ["THREADS", "Uploads", "Waiting"]

THREADS = 64  # of the server
SHORT_BYTES = 64 << 10  # what is shorter is in the network's buffers when a request is read
# All uploads with MAX_WAITING are fewer than THREADS: health and reads always find a thread.
MAX_SHORT_UPLOADS, MAX_LONG_UPLOADS = 24, 8
UPLOAD_PATIENCE_S = 0.2  # a body that is here is read in microseconds
MAX_WAITING = 24  # polls and streams together: the others must find a thread


class Uploads:
    """Places for requests whose body is still arriving: a thread cannot leave a slow sender.

    A read of granian's stream cannot be given up: a deadline kept from another thread hangs the
    server until the client has left. So long bodies, which slow lines make last, have places of
    their own, and what people and workers append finds others.
    """

    def __init__(self) -> None:
        self._short = _places(MAX_SHORT_UPLOADS)
        self._long = _places(MAX_LONG_UPLOADS)

    @contextlib.contextmanager
    def place(self, length_bytes: int | None) -> Iterator[None]:
        """Hold one place for the length of a block; a burst may wait for one, but not for long.

        `length_bytes`: of the body as declared, None where nobody knows.
        """
        is_short = length_bytes is not None and length_bytes <= SHORT_BYTES
        places = self._short if is_short else self._long
        try:
            places.get(timeout=UPLOAD_PATIENCE_S)
        except Empty:
            limit = MAX_SHORT_UPLOADS if is_short else MAX_LONG_UPLOADS
            raise Overloaded(f"{limit} bodies of this size arrive already", limit=limit) from None
        try:
            yield
        finally:
            places.put(None)


def _places(count: int) -> SimpleQueue[None]:
    """A queue of tokens: a semaphore that costs next to nothing while places are free."""
    places: SimpleQueue[None] = SimpleQueue()
    for _ in range(count):
        places.put(None)
    return places


class Waiting:
    """Places for requests that wait; one more is refused at once, with Retry-After."""

    def __init__(self, turns: Turns) -> None:
        self._places = threading.Semaphore(MAX_WAITING)
        self._turns = turns

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Hold one place for the length of a block, in which the request does no work."""
        give_back = self.take()
        self._turns.end()
        try:
            yield
        finally:
            self._turns.begin()
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
