"""A light load generator: many kept-alive connections, one thread, each with one request in flight.

The clients of a benchmark take CPU from the server on the same machine; this one spends about as
little as Python can: prepared bytes, raw sockets, one selector.
"""

from __future__ import annotations

import os
import selectors
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

__all__ = ["Load", "Measured", "append_request", "drive"]

MSGPACK = "application/vnd.msgpack"
TEXT = "x" * 280  # with its envelope a message of about 300 bytes
_MARK = "f" * 32


@dataclass(frozen=True)
class Measured:
    """What a load gave: requests and events per second, request seconds at two quantiles."""

    requests_per_s: float
    events_per_s: float
    p50_s: float
    p99_s: float


@dataclass
class Load:
    """One connection's next request, rebuilt with fresh event ids each time."""

    head: bytes
    parts: Sequence[bytes]
    events: int

    def bytes(self) -> bytes:
        ids = os.urandom(16 * self.events).hex().encode()
        body = [self.head, self.parts[0]]
        for at, part in enumerate(self.parts[1:]):
            body += (ids[32 * at : 32 * at + 32], part)
        return b"".join(body)


def append_request(run: str, events: int) -> Load:
    """An append of `events` messages to `run`; ids are made anew for every request."""
    event = {"type": "bench.message", "data": {"role": "user", "text": TEXT}, "id": _MARK}
    body = msgspec.msgpack.encode({"events": [event] * events})
    head = (
        f"POST /runs/{run}/events HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: {MSGPACK}\r\nAccept: {MSGPACK}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return Load(head=head.encode(), parts=body.split(_MARK.encode()), events=events)


class _Connection:
    """One kept-alive connection with at most one request in flight."""

    def __init__(self, port: int, load: Load) -> None:
        self.load = load
        self.sent_at = 0.0
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answer = b""

    def send(self) -> None:
        self._answer = b""
        self.sent_at = time.perf_counter()
        self.socket.sendall(self.load.bytes())

    def received(self) -> bool:
        """Read what is there; True once the answer, which must be a 201, is whole."""
        self._answer += self.socket.recv(65_536)
        head, found, body = self._answer.partition(b"\r\n\r\n")
        if not found:
            return False
        if not head.startswith(b"HTTP/1.1 201"):
            raise RuntimeError(f"not a 201: {self._answer[:400]!r}")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        return len(body) >= int(length)


def drive(port: int, loads: Sequence[Load], seconds: float) -> Measured:
    """Keep one request in flight per load for `seconds`; every answer must be 201."""
    selector = selectors.DefaultSelector()
    connections = [_Connection(port, load) for load in loads]
    started = time.perf_counter()
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.send()
    took: list[float] = []
    events = 0
    while time.perf_counter() - started < seconds:
        for key, _ in selector.select(1.0):
            connection = key.data
            if not connection.received():
                continue
            took.append(time.perf_counter() - connection.sent_at)
            events += connection.load.events
            connection.send()
    elapsed = time.perf_counter() - started
    for connection in connections:
        connection.socket.close()
    took.sort()
    return Measured(
        requests_per_s=len(took) / elapsed,
        events_per_s=events / elapsed,
        p50_s=statistics.median(took),
        p99_s=took[int(len(took) * 0.99)],
    )
