"""A server that answers what a test has written down, byte by byte."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stillrun.client import StoreClient
from stillrun.codec import MSGPACK, encode_json, encode_msgpack

Answer = bytes | None  # None: the connection is closed without a word


def http(
    status: int, body: object = None, *, kind: str = MSGPACK, headers: str = "", raw: bytes = b""
) -> bytes:
    if body is not None:
        raw = encode_msgpack(body) if kind == MSGPACK else encode_json(body)
    return (
        f"HTTP/1.1 {status} Word\r\nContent-Type: {kind}\r\n{headers}"
        f"Content-Length: {len(raw)}\r\n\r\n"
    ).encode() + raw


class ScriptedStore:
    """Answers `GET /` as a store does, and every other request with the next of `answers`.

    `requests`: their bytes, hellos left out. `store_id` may be changed between two connections.
    """

    def __init__(self) -> None:
        self.answers: list[Answer | Callable[[], Answer]] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self.store_id = "a" * 32
        self.hello_status = 200
        self._port = 0
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self.start()

    def start(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """Like a killed process: the listener and every connection are gone."""
        with contextlib.suppress(OSError):  # stopped before
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections, self._open = self._open, []
        for each in connections:
            with contextlib.suppress(OSError):  # closed by the thread that served it
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.append(connection)
                self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while (request := _request(connection)) is not None:
                answer = self._answer(request)
                if answer is None:
                    break
                connection.sendall(answer)
                if not _is_whole(answer):
                    break
        except OSError:
            pass
        finally:
            connection.close()

    def _answer(self, request: bytes) -> Answer:
        if request.startswith(b"GET / "):
            return http(self.hello_status, {"store_id": self.store_id}, kind="application/json")
        with self._lock:
            self.requests.append(request)
            answer = self.answers.pop(0)
        return answer() if callable(answer) else answer


def _request(connection: socket.socket) -> bytes | None:
    data = b""
    while b"\r\n\r\n" not in data:
        data += (more := connection.recv(65536))
        if not more:
            return None
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-len")),
        0,
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    lengths = [line[15:] for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")]
    return bool(end) and bool(lengths) and len(body) == int(lengths[0])


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.naps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


@pytest.fixture
def store() -> Iterator[ScriptedStore]:
    scripted = ScriptedStore()
    yield scripted
    scripted.stop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def connect() -> Iterator[Callable[..., StoreClient]]:
    """Makes clients, and closes them when the test is over."""
    with contextlib.ExitStack() as stack:
        yield lambda url, **options: stack.enter_context(StoreClient(url, **options))


@pytest.fixture
def client(store: ScriptedStore, clock: Clock, connect: Callable[..., StoreClient]) -> StoreClient:
    return connect(store.url, timeout_s=5.0, clock=clock, sleep=clock.sleep)


@pytest.fixture(name="http")
def http_fixture() -> Callable[..., Any]:
    return http
