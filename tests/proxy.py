"""A proxy between a client and a store that loses what it is told to lose.

Always: a lost reply is lost after the server has done the work: the server's whole answer was read,
and the client gets none of it, or half; every request is counted with its fate.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Literal, Self
from urllib.parse import urlsplit

__all__ = ["LossyProxy", "Seen"]

JOIN_S = 5.0  # a thread that hangs longer is left to the end of the process

How = Literal["reply", "half", "request"]
Matching = Callable[[str, str, bytes], bool]  # method, path, body


@dataclass(frozen=True, slots=True)
class Seen:
    """One request and what became of it; `status` is the server's, None where it never answered."""

    method: str
    path: str
    body: bytes
    status: int | None
    lost: How | None


@dataclass(slots=True)
class _Loss:
    matching: Matching
    how: How
    skip: int
    times: int


class LossyProxy:
    """``with LossyProxy(store.url) as proxy:``, then ``StoreClient(proxy.url)``.

    Speaks HTTP/1.1 with Content-Length or chunks, one request after the other per connection.
    """

    def __init__(self, target: str, *, on_loss: Callable[[], object] | None = None) -> None:
        """`on_loss` is called when something was lost, before the client learns of it."""
        parts = urlsplit(target)
        self._on_loss = on_loss
        self.target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Condition()
        self._losses: list[_Loss] = []
        self._seen: list[Seen] = []
        self._open: set[socket.socket] = set()
        self._closed = False
        self._serving: list[threading.Thread] = []

    def lose(
        self,
        method: str,
        part: str,
        *,
        how: How = "reply",
        nth: int = 1,
        times: int = 1,
    ) -> None:
        """Lose the `nth` matching request from now on, and `times - 1` after it.

        `part`: of the path. how: "reply" drops the answer, "half" cuts it off, "request" drops the
        request before the server has seen it.
        """
        self.lose_if(lambda m, p, _: m == method and part in p, how=how, nth=nth, times=times)

    def lose_if(
        self, matching: Matching, *, how: How = "reply", nth: int = 1, times: int = 1
    ) -> None:
        """The same for whatever `matching(method, path, body)` says."""
        with self._lock:
            self._losses.append(_Loss(matching, how, nth - 1, times))

    def heal(self) -> None:
        """Lose nothing more."""
        with self._lock:
            self._losses.clear()

    def seen(self, method: str | None = None, part: str = "") -> list[Seen]:
        """The requests so far whose fate is known, oldest first."""
        with self._lock:
            return [s for s in self._seen if method in (None, s.method) and part in s.path]

    @property
    def lost(self) -> int:
        """How many requests were lost so far: a test that loses none has shown nothing."""
        return sum(seen.lost is not None for seen in self.seen())

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._closed = True
            sockets = [self._listener, *self._open]
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for serving in list(self._serving):
            serving.join(JOIN_S)  # what a thread leaves open would warn in another test

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            serving = threading.Thread(target=self._serve, args=(client,), daemon=True)
            with self._lock:
                self._serving.append(serving)
            serving.start()

    def _serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        with self._lock:
            closed = self._closed
            if not closed:
                self._open.add(client)
        if closed:  # accepted while we closed: nobody else knows of it
            client.close()
            return
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server = socket.create_connection(self.target)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open.add(server)
            # Closed here: a file left to the collector keeps its socket, and warns in another test.
            with client.makefile("rb") as from_client, server.makefile("rb") as from_server:
                while self._one(client, server, from_client, from_server):
                    pass
        except OSError:
            pass
        finally:
            for each in filter(None, (client, server)):
                # Closed for good also while a reader's file is still open.
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
                with self._lock:
                    self._open.discard(each)

    def _one(
        self,
        client: socket.socket,
        server: socket.socket,
        from_client: BinaryIO,
        from_server: BinaryIO,
    ) -> bool:
        request = _message(from_client)
        if request is None:
            return False
        first, raw, body = request
        method, path, _ = first.split(" ", 2)
        how = self._fate(method, path, body)
        if how == "request":
            self._record(Seen(method, path, body, None, how))
            return False
        server.sendall(raw)
        answer = _message(from_server)
        if answer is None:
            self._record(Seen(method, path, body, None, None))
            return False
        first, raw, _ = answer
        self._record(Seen(method, path, body, int(first.split(" ")[1]), how))
        if how is not None and self._on_loss is not None:
            self._on_loss()
        if how == "half":
            client.sendall(raw[: len(raw) // 2])
        if how is not None:
            return False
        client.sendall(raw)
        return True

    def _fate(self, method: str, path: str, body: bytes) -> How | None:
        with self._lock:
            for loss in self._losses:
                if loss.times == 0 or not loss.matching(method, path, body):
                    continue
                if loss.skip > 0:
                    loss.skip -= 1
                    continue
                loss.times -= 1
                return loss.how
        return None

    def _record(self, seen: Seen) -> None:
        with self._lock:
            self._seen.append(seen)
            self._lock.notify_all()


def _message(stream: BinaryIO) -> tuple[str, bytes, bytes] | None:
    """First line, all bytes, and the body of one HTTP message; None at the end of the stream."""
    head = b""
    length, chunked = 0, False
    while True:
        line = stream.readline()
        if not line:
            return None
        head += line
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
        elif name.lower() == b"transfer-encoding":
            chunked = b"chunked" in value.lower()
        if line == b"\r\n":
            break
    body = _chunks(stream) if chunked else stream.read(length)
    return head.split(b"\r\n", 1)[0].decode("latin-1"), head + body, body


def _chunks(stream: BinaryIO) -> bytes:
    body = b""
    while True:
        line = stream.readline()
        size = int(line.split(b";")[0], 16)
        body += line + stream.read(size) + stream.readline()
        if size == 0:
            return body
