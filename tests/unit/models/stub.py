"""An endpoint in this process that misbehaves to order.

Always: one behaviour per request, in order, the last one for ever; each request is kept.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[[BaseHTTPRequestHandler, threading.Event], None]


@dataclass
class Asked:
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Stub:
    url: str
    script: list[Behaviour] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    def does(self, *behaviours: Behaviour) -> None:
        self.script[:] = behaviours

    @property
    def last(self) -> Any:
        """The body of the last request."""
        return self.asked[-1].body


@contextlib.contextmanager
def running() -> Iterator[Stub]:
    stop, lock = threading.Event(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.close_connection = True
            with lock:
                stub.asked.append(Asked(self.path, dict(self.headers), body))
                behave = stub.script.pop(0) if len(stub.script) > 1 else stub.script[0]
            with contextlib.suppress(ConnectionError):
                behave(self, stop)

        do_GET = do_POST

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub = Stub(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield stub
    finally:
        stop.set()
        server.shutdown()
        server.server_close()
        thread.join()


# --- behaviours


def says(
    body: object, status: int = 200, headers: dict[str, str] | None = None, more: int = 0
) -> Behaviour:
    """An answer; `more`: bytes that its length promises and that never come."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def behave(handler: BaseHTTPRequestHandler, stop: threading.Event) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data) + more))
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    return behave


def hangs(handler: BaseHTTPRequestHandler, stop: threading.Event) -> None:
    stop.wait(30)


def hangs_up(handler: BaseHTTPRequestHandler, stop: threading.Event) -> None:
    """The request was read, and no byte is answered."""


def _head(handler: BaseHTTPRequestHandler, *lines: str) -> None:
    handler.wfile.write("\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode())


def trickles(handler: BaseHTTPRequestHandler, stop: threading.Event) -> None:
    """A byte now and then: each comes within any read timeout."""
    _head(handler, "Content-Length: 1000000")
    while not stop.wait(0.05):
        handler.wfile.write(b" ")


def floods(handler: BaseHTTPRequestHandler, stop: threading.Event) -> None:
    """No length, no end."""
    _head(handler, "Connection: close")
    while not stop.is_set():
        handler.wfile.write(b" " * 65536)


def cuts_a_chunk(handler: BaseHTTPRequestHandler, stop: threading.Event) -> None:
    _head(handler, "Transfer-Encoding: chunked")
    handler.wfile.write(b'5\r\n{"cho\r\nff\r\nices')


def cuts_without_length(handler: BaseHTTPRequestHandler, stop: threading.Event) -> None:
    """The end of the connection is the end of the body: only its JSON tells that it is cut."""
    _head(handler, "Connection: close")
    handler.wfile.write(b'{"choices": [{"message": {"content": "he')


def in_chunks(body: object) -> Behaviour:
    data = json.dumps(body).encode()

    def behave(handler: BaseHTTPRequestHandler, stop: threading.Event) -> None:
        _head(handler, "Transfer-Encoding: chunked")
        for at in range(0, len(data), 7):
            part = data[at : at + 7]
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        handler.wfile.write(b"0\r\n\r\n")

    return behave


# --- bodies


def completion(content: object = None, *calls: tuple[str, object], **more: Any) -> dict[str, Any]:
    """A well-behaved chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{at}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for at, (name, arguments) in enumerate(calls)
        ]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "m-2026-01",
        "system_fingerprint": "fp_1",
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "tool_calls" if calls else "stop",
            }
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
        **more,
    }
