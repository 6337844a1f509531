"""Beside the lossy proxy: a tape that keeps the store's answers, a shutter that shuts, a crash.

Always: the tape has an answer before anybody else gets it, so a test knows the answer that was
lost; while the shutter is shut, connections are refused and those that stood are gone.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from services import Service

__all__ = ["Shutter", "Tape", "Taped", "crash"]

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Taped:
    """One request and the store's answer to it."""

    method: str
    path: str
    sent: bytes
    status: int
    kind: str
    body: bytes


class Tape:
    """``with Tape(store.url, meanwhile) as tape``: a relay that remembers.

    `meanwhile` is called once, between the store's first answer and the next hop's getting it.
    Greetings (GET /) are relayed and not kept.
    """

    def __init__(self, target: str, meanwhile: Callable[[], object]) -> None:
        self.kept: list[Taped] = []
        self._target = urlsplit(target).netloc
        self._meanwhile = meanwhile
        tape = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def relay(self) -> None:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    tape._relay(self)
                    return
                self.close_connection = True

            do_GET = do_PUT = do_POST = do_DELETE = relay

            def log_message(self, *_: Any) -> None:
                """A test's output is its own."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _relay(self, request: BaseHTTPRequestHandler) -> None:
        sent = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        headers = {
            name: request.headers[name]
            for name in ("Accept", "Content-Type")
            if name in request.headers
        }
        method, path = request.command, request.path
        with contextlib.closing(http.client.HTTPConnection(self._target, timeout=TIMEOUT_S)) as hop:
            hop.request(method, path, sent, headers)
            reply = hop.getresponse()
            body, kind = reply.read(), reply.headers.get("Content-Type", "")
        if path != "/":
            self.kept.append(Taped(method, path, sent, reply.status, kind, body))
            if len(self.kept) == 1:
                self._meanwhile()
        request.send_response(reply.status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def __enter__(self) -> Self:
        poll_s = 0.05
        threading.Thread(target=self._server.serve_forever, args=(poll_s,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class Shutter:
    """``with Shutter(proxy.url) as shutter``: a relay of bytes that can refuse for a while."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.cut = 0  # connections that stood when it was shut

    def shut(self) -> None:
        """Refuse whoever comes, and cut off who is there."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            stood, self._open = self._open, set()
        self.cut += len(stood) // 2
        for each in stood:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def is_shut(self) -> bool:
        """Whether a connection is refused, tried out."""
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=5).close()
        except ConnectionRefusedError:
            return True
        return False

    def open(self) -> None:
        """Let everybody in again, at the same port."""
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._accept_in_thread()

    def _accept_in_thread(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pair, args=(client,), daemon=True).start()

    def _pair(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, server}
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            _copy(client, server)
            back.join(TIMEOUT_S)
            with self._lock:
                self._open -= {client, server}

    def __enter__(self) -> Self:
        self._accept_in_thread()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shut()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Bytes from one to the other until either ends; then both do."""
    with contextlib.suppress(OSError):
        while data := source.recv(64 << 10):
            sink.sendall(data)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def crash(service: Service) -> None:
    """SIGKILL, then the same port and the same data again."""
    service.kill_all()
    # In a thread of its own: failed requests leave cycles that would keep the caller's frames, and
    # with them a relay's sockets, until some later collection warns of them.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(service.start).result()
