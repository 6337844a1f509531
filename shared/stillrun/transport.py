"""HTTP/1.1 to one store: kept-alive connections, and the same request until its fate is known.

Always: a request's bytes are made once and repeated unchanged, so the ids in them make the repeat
safe (I4); an answer that cannot be read whole is an unknown outcome, never a failure; every wait
has an end. Written on sockets, not on the standard library's client, which costs thrice the CPU.
"""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from .errors import InvalidParameter, OutcomeUnknown, Unavailable

__all__ = ["Interrupted", "Reply", "StoreUnreachable", "Transport", "Unreadable"]

T = TypeVar("T")

RETRIED = frozenset({502, 503, 504, 507})  # not now; 507 ends when somebody frees space
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 2.0  # a store is back within seconds: waiting longer only adds to the outage
RETRY_AFTER_MAX_S = 15.0  # a mistaken header must not park a worker for an hour
MAX_IDLE_CONNECTIONS = 64  # one for each thread of a busy worker
MAX_LINE_BYTES = 64 << 10
MAX_HEADERS = 100
MAX_ANSWER_BYTES = 1 << 30  # the state of a very large run; more is not ours
STOP_CHECK_S = 0.2  # how long a poll may overlook that its caller stops


class StoreUnreachable(Unavailable):
    """No answer in time, and no attempt can have changed anything: is the store up?"""

    code, title = "store_unreachable", "The store does not answer"


class Interrupted(Unavailable):
    """The caller's stop event was set while waiting; only a repeat tells what the request did."""

    code, title = "interrupted", "Stopped while waiting"


class Unreadable(Exception):
    """What came back is not a whole HTTP answer, or not one of this store."""


class Reply(NamedTuple):
    """A whole answer; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class _Connection:
    """One kept-alive connection. Not thread-safe: it belongs to whoever took it from the pool."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        try:
            # Without this the kernel holds a small body back until the head is acknowledged.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
            self._file = self._socket.makefile("rb", buffering=64 << 10)
        except BaseException:
            self._socket.close()
            raise
        self.reusable = True

    def exchange(
        self, request: bytes, *, timeout_s: float, stop: threading.Event | None = None
    ) -> Reply:
        """Send and read; raises OSError, Unreadable or Interrupted, and is then of no use."""
        self._socket.settimeout(timeout_s)
        self._socket.sendall(request)
        if stop is not None:
            self._wait(stop, timeout_s)
        status, headers = self._head()
        while 100 <= status < 200:
            status, headers = self._head()
        if headers.get("connection", "").lower() == "close":
            self.reusable = False
        return Reply(status, headers, self._body(status, headers))

    def _wait(self, stop: threading.Event, timeout_s: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            deadline = time.monotonic() + timeout_s
            while not selector.select(STOP_CHECK_S):
                if stop.is_set():
                    raise Interrupted("stopped while the store was holding the request")
                if time.monotonic() > deadline:
                    raise TimeoutError("no answer in time")

    def _line(self) -> bytes:
        line = self._file.readline(MAX_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise Unreadable("the answer ends within its head")
        return line.rstrip(b"\r\n")

    def _head(self) -> tuple[int, dict[str, str]]:
        first = self._line()
        version, _, rest = first.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise Unreadable(f"not an HTTP answer: {first[:40]!r}")
        if version == b"HTTP/1.0":
            self.reusable = False
        headers: dict[str, str] = {}
        while line := self._line():
            name, colon, value = line.partition(b":")
            if not colon or len(headers) >= MAX_HEADERS:
                raise Unreadable(f"not a header: {line[:40]!r}")
            headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
        return int(rest[:3]), headers

    def _body(self, status: int, headers: dict[str, str]) -> bytes:
        if status in (204, 304):
            return b""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._chunks()
        length = headers.get("content-length", "")
        if not length.isdecimal():
            # A body that ends with the connection cannot be told from one that was cut off.
            raise Unreadable("an answer without a length")
        return self._exactly(int(length))

    def _exactly(self, size_bytes: int) -> bytes:
        if size_bytes > MAX_ANSWER_BYTES:
            raise Unreadable(f"an answer of {size_bytes} bytes")
        body: bytes = self._file.read(size_bytes)
        if len(body) != size_bytes:
            raise Unreadable(f"{len(body)} of {size_bytes} bytes of the answer")
        return body

    def _chunks(self) -> bytes:
        body = bytearray()
        while True:
            size = self._line().partition(b";")[0].strip()
            try:
                size_bytes = int(size, 16)
            except ValueError:
                raise Unreadable(f"not the size of a chunk: {size[:40]!r}") from None
            if size_bytes == 0:
                break
            body += self._exactly(size_bytes)
            if self._line() or len(body) > MAX_ANSWER_BYTES:
                raise Unreadable("a chunk of another size than it says")
        while self._line():
            pass
        return bytes(body)

    def close(self) -> None:
        for thing in (self._file, self._socket):
            with contextlib.suppress(OSError):
                thing.close()


class Transport:
    """A thread-safe pool of connections to one store, and the retry of the same bytes.

    `hello` sees the answer to GET / on every new connection, so a store that was replaced is
    noticed before anything is sent to it. `retry_for_s` is longer than a restart takes.
    """

    def __init__(
        self,
        url: str,
        *,
        hello: Callable[[Reply], None] | None = None,
        connect_timeout_s: float = 3.0,
        timeout_s: float = 10.0,
        retry_for_s: float = 90.0,
        stop: threading.Event | None = None,
        sleep: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise InvalidParameter("url", f"{url!r} is not like http://127.0.0.1:8100")
        self.url = url.rstrip("/")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._authority = parts.netloc.rpartition("@")[2]
        self._hello = hello
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._retry_for_s = retry_for_s
        self._stop = stop or threading.Event()
        self._sleep = sleep
        self._clock = clock
        self._rng = rng or random.Random()
        self._idle: deque[_Connection] = deque()
        self._closed = False

    def request(
        self,
        method: str,
        path: str,
        *,
        read: Callable[[Reply], T],
        body: bytes = b"",
        headers: str = "",
        wait_s: float = 0.0,
        stop: threading.Event | None = None,
        retry_for_s: float | None = None,
    ) -> T:
        """What `read` makes of the answer, which it may call Unreadable.

        `headers`: lines, each with its line end. `wait_s`: how long the store may hold the request.
        `stop` ends the waiting between attempts, and a GET that the store holds. Raises
        OutcomeUnknown when an attempt may have taken effect and no repeat was answered in time,
        else StoreUnreachable, or what `read` raises for the last 503; what `read` raises otherwise
        is passed on.
        """
        request = self._bytes(method, path, headers, body)
        limit_s = self._retry_for_s if retry_for_s is None else retry_for_s
        deadline = self._clock() + limit_s
        maybe_done = False
        attempt, at_once = 0, True
        while True:
            after_s: float | None = None
            refusal: Reply | None = None
            sent = reused = False
            try:
                connection, reused = self._take()
                sent = True
                reply = self._exchange(connection, method, request, wait_s, stop)
                if reply.status not in RETRIED:
                    return read(reply)
                refusal, after_s = reply, _retry_after_s(reply)
                # A gateway's word, or a failed fsync: the store may have done it all the same.
                maybe_done = maybe_done or reply.status in (502, 504) or _is_unknown(reply)
                why = f"HTTP {reply.status}"
            except (OSError, Unreadable) as error:
                maybe_done = maybe_done or sent
                why = f"{type(error).__name__}: {error}"
                if reused:
                    # The store has restarted: the other idle connections are as stale as this one.
                    self._drop_idle()
                    if at_once:
                        at_once = False
                        continue
            attempt += 1
            delay_s = self._delay_s(attempt, after_s)
            if self._clock() + delay_s > deadline:
                break
            self._pause(delay_s, stop)
        if maybe_done and method != "GET":
            raise OutcomeUnknown(f"{method} {path}: no answer within {limit_s:g} s ({why})")
        if refusal is not None:
            return read(refusal)
        raise StoreUnreachable(f"{self.url} does not answer: {why}")

    def close(self) -> None:
        """Close what is idle now, and what is in use as soon as it is free."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def _bytes(self, method: str, path: str, headers: str, body: bytes) -> bytes:
        length = f"Content-Length: {len(body)}\r\n" if body or method != "GET" else ""
        head = (
            f"{method} {self._prefix}{path} HTTP/1.1\r\nHost: {self._authority}\r\n"
            f"{headers}{length}\r\n"
        )
        # One buffer, one packet: a server that gets head and body apart reads twice.
        return head.encode("ascii") + body

    def _take(self) -> tuple[_Connection, bool]:
        """A connection, and whether it was used before."""
        with contextlib.suppress(IndexError):
            return self._idle.pop(), True
        connection = _Connection(self._host, self._port, self._tls, self._connect_timeout_s)
        if self._hello is None:
            return connection, False
        try:
            hello = self._bytes("GET", "/", "Accept: application/json\r\n", b"")
            reply = connection.exchange(hello, timeout_s=self._timeout_s)
            if reply.status in RETRIED:
                raise ConnectionError(f"HTTP {reply.status} to the first request")
            self._hello(reply)
        except Unreadable as error:
            connection.close()
            raise ConnectionError(f"to the first request: {error}") from error
        except BaseException:
            connection.close()
            raise
        return connection, False

    def _exchange(
        self,
        connection: _Connection,
        method: str,
        request: bytes,
        wait_s: float,
        stop: threading.Event | None,
    ) -> Reply:
        try:
            timeout_s = self._timeout_s + wait_s
            # A held write is waited for: cut short, it may take effect after its caller has gone.
            poll_stop = stop if method == "GET" and wait_s > 0 else None
            reply = connection.exchange(request, timeout_s=timeout_s, stop=poll_stop)
        except BaseException:
            connection.close()
            raise
        if connection.reusable and len(self._idle) < MAX_IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.close()
        if self._closed:  # looked at after the append: `close` may have come in between
            self._drop_idle()
        return reply

    def _delay_s(self, attempt: int, after_s: float | None) -> float:
        """Exponential with full jitter; at least what the store asked for, within reason."""
        most_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(attempt, 16))
        delay_s = self._rng.uniform(0, most_s)
        return delay_s if after_s is None else min(after_s, RETRY_AFTER_MAX_S) + delay_s

    def _pause(self, delay_s: float, stop: threading.Event | None) -> None:
        if self._sleep is not None:
            self._sleep(delay_s)
        else:
            until = time.monotonic() + delay_s
            while (left_s := until - time.monotonic()) > 0:
                if self._stop.is_set() or (stop is not None and stop.is_set()):
                    break
                (stop or self._stop).wait(min(left_s, STOP_CHECK_S))
        if self._stop.is_set() or (stop is not None and stop.is_set()):
            raise Interrupted("stopped between two attempts")


def _retry_after_s(reply: Reply) -> float | None:
    """Retry-After in seconds; its other form, a date, is ignored: the store never sends it."""
    value = reply.headers.get("retry-after", "")
    return float(value) if value.isdecimal() else None


def _is_unknown(reply: Reply) -> bool:
    return b"outcome_unknown" in reply.body
