"""A tap in a connection: it stops a request before the server sees it, or an answer on its way.

Always: what stands in the tap goes on only when it is told to; what the server has answered is
kept, whether or not the client got it: an acknowledgement is one when it leaves the server.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import BinaryIO, Literal, Self
from urllib.parse import urlsplit

__all__ = ["Exchange", "Stop", "Tap", "When"]

When = Literal["before", "after"]
Fate = Literal["pass", "drop"]
STAND_S = 120.0  # a forgotten stop must not outlive the test


@dataclass(slots=True, eq=False)
class Exchange:
    """A request and, once the server has given it, the answer."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    status: int | None = None
    answer: bytes = b""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


Matching = Callable[[Exchange], bool]


@dataclass(eq=False)
class Stop:
    """Where requests are to stand: `skip` that match pass, then up to `most` are stopped."""

    matching: Matching
    when: When
    skip: int = 0
    most: int = 1
    standing: list[Exchange] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _fate: Fate | None = None

    @property
    def reached(self) -> bool:
        return self.count >= 1

    @property
    def count(self) -> int:
        """How many have stood here so far."""
        with self._changed:
            return len(self.standing)

    def wait(self, count: int, timeout_s: float) -> bool:
        """Whether so many stand here within that time."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.standing) >= count, timeout_s)

    def let_go(self, fate: Fate = "pass") -> None:
        """All that stand here pass, or vanish with their connection; nobody is stopped again."""
        with self._changed:
            self._fate = self._fate or fate
            self._changed.notify_all()

    def stand(self, exchange: Exchange) -> Fate:
        """Called by the tap: how it goes on with this one."""
        with self._changed:
            if self._fate is not None or not self.matching(exchange):
                return "pass"
            if self.skip > 0:
                self.skip -= 1
                return "pass"
            if len(self.standing) >= self.most:
                return "pass"
            self.standing.append(exchange)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._fate is not None, STAND_S)
            return self._fate or "drop"


class Tap:
    """``with Tap(store.url) as tap:``, then speak to ``tap.url``.

    HTTP/1.1 with Content-Length or chunks, one request after the other per connection.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._stops: list[Stop] = []
        self._seen: list[Exchange] = []
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closed = self._shut = False

    def stop_at(self, matching: Matching, when: When, *, skip: int = 0, most: int = 1) -> Stop:
        stop = Stop(matching, when, skip, most)
        with self._lock:
            self._stops.append(stop)
        return stop

    def shut(self) -> None:
        """Refuse everything until `reopen`, as if the cable were out."""
        self._shut = True

    def reopen(self) -> None:
        self._shut = False

    def clear(self) -> None:
        """Drop what stands, forget stops and what was seen."""
        with self._lock:
            stops, self._stops, self._seen = self._stops, [], []
        for stop in stops:
            stop.let_go("drop")

    def seen(self) -> list[Exchange]:
        """What the server has answered, oldest first."""
        with self._lock:
            return list(self._seen)

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self._accept, name="tap", daemon=True)]
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()
        with self._lock:
            self._closed = True
            sockets = [self._listener, *self._open]
        for each in sockets:
            _close(each)
        ends = time.monotonic() + 5
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            with self._lock:
                self._open.add(client)
                closed = self._closed
                self._threads = [t for t in self._threads if t.is_alive()] + [thread]
            if closed:
                _close(client)
                return
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        with contextlib.suppress(OSError, ValueError), client, client.makefile("rb") as stream:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                while (message := _message(stream)) is not None:
                    first, headers, raw, body = message
                    method, path, _ = first.split(" ", 2)
                    exchange = Exchange(method, path, body, headers)
                    stood = self._stand(exchange, "before")
                    if self._shut or stood == "drop":
                        break
                    if stood == "waited" and server is not None:
                        self._forget(server)  # it may be another process by now
                        server = None
                    if server is None:
                        server = self._connect()
                    answer = self._forward(server, exchange, raw)
                    if answer is None or self._stand(exchange, "after") == "drop":
                        break
                    client.sendall(answer)
            finally:
                if server is not None:
                    self._forget(server)
        self._forget(client)

    def _connect(self) -> socket.socket:
        server = socket.create_connection(self._target, timeout=STAND_S)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open.add(server)
        return server

    def _forget(self, each: socket.socket) -> None:
        _close(each)
        with self._lock:
            self._open.discard(each)

    def _forward(self, server: socket.socket, exchange: Exchange, raw: bytes) -> bytes | None:
        server.sendall(raw)
        with server.makefile("rb") as stream:  # nothing is read ahead: one answer per request
            message = _message(stream)
        if message is None:
            return None
        first, _, raw, exchange.answer = message
        exchange.status = int(first.split(" ")[1])
        with self._lock:
            self._seen.append(exchange)
        return raw

    def _stand(self, exchange: Exchange, when: When) -> Literal["pass", "waited", "drop"]:
        with self._lock:
            stops = [stop for stop in self._stops if stop.when == when]
        for stop in stops:
            fate = stop.stand(exchange)
            if fate == "drop":
                return "drop"
            if exchange in stop.standing:
                return "waited"
        return "pass"


def _close(each: socket.socket) -> None:
    # Closed for good also while a reader's file is still open.
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


def _message(stream: BinaryIO) -> tuple[str, dict[str, str], bytes, bytes] | None:
    """First line, headers, all bytes, and the body of one HTTP message; None at the end."""
    head, headers = b"", {}
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline()
        if not line:
            return None
        head += line
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    first = head.split(b"\r\n", 1)[0].decode("latin-1")
    if "chunked" in headers.get("transfer-encoding", ""):
        raw, body = _chunks(stream)
    else:
        length = int(headers.get("content-length", 0))
        raw = body = stream.read(length)
        if len(raw) < length:
            return None  # it died while it spoke
    return first, headers, head + raw, body


def _chunks(stream: BinaryIO) -> tuple[bytes, bytes]:
    raw = body = b""
    while True:
        line = stream.readline()
        size = int(line.split(b";")[0], 16)  # ValueError where it died while it spoke
        part = stream.read(size)
        raw += line + part + stream.readline()
        body += part
        if size == 0:
            return raw, body
