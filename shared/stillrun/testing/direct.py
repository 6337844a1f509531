"""The store's client without a socket: each request goes straight into the store's application.

Always: the routes, the codec and the errors are the store's own; a request that may wait does not:
`idle` lets virtual time pass, and then it is asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from stillrun.client import StoreClient
from stillrun.codec import decode_trusted
from stillrun.transport import Reply, Transport

__all__ = ["DirectClient"]

T = TypeVar("T")

URL = "http://localhost"


class DirectClient(StoreClient):
    """`app`: the WSGI application of the store as it is now, for it may be restarted.

    `idle(seconds)`: what to do instead of waiting. `boundary(where)`: told before and after each
    write; a client of people leaves both out.
    """

    def __init__(
        self,
        app: Callable[[], Any],
        *,
        idle: Callable[[float], None] | None = None,
        boundary: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(URL)
        self._transport = _Direct(app, idle, boundary)


class _Direct(Transport):
    def __init__(
        self,
        app: Callable[[], Any],
        idle: Callable[[float], None] | None,
        boundary: Callable[[str], None] | None,
    ) -> None:
        super().__init__(URL)
        self._app, self._idle_for, self._boundary = app, idle, boundary

    def request(
        self,
        method: str,
        path: str,
        *,
        read: Callable[[Reply], T],
        body: bytes = b"",
        headers: str = "",
        wait_s: float = 0.0,
        stop: Any = None,
        retry_for_s: float | None = None,
    ) -> T:
        """One request; nothing is repeated, for nothing gets lost on the way."""
        path, _, query = path.partition("?")
        pairs = [(name, value) for name, value in parse_qsl(query) if name != "timeout_s"]
        target = f"{path}?{urlencode(pairs)}" if pairs else path
        boundary = self._boundary if method != "GET" and path != "/leases" else None
        where = _told(method, path, body) if boundary is not None else ""
        if boundary is not None:
            boundary(f"before {where}")
        reply = self._exchange_directly(method, target, headers, body)
        if method == "GET" and wait_s > 0 and self._idle_for is not None and _is_empty(reply):
            self._idle_for(wait_s)
            reply = self._exchange_directly(method, target, headers, body)
        if boundary is not None:
            boundary(f"after {where}")
        return read(reply)

    def _exchange_directly(self, method: str, target: str, headers: str, body: bytes) -> Reply:
        lines = [line.partition(": ") for line in headers.split("\r\n") if line]
        given = {name: value for name, _, value in lines}
        answer = self._app().test_client().open(target, method=method, headers=given, data=body)
        names = {name.lower(): value for name, value in answer.headers.items()}
        return Reply(answer.status_code, names, answer.get_data())


def _is_empty(reply: Reply) -> bool:
    return reply.status == 200 and not decode_trusted(reply.body).get("events", [None])


def _told(method: str, path: str, body: bytes) -> str:
    """The request in words, with what it appends."""
    if not path.endswith("/events"):
        return f"{method} {path}"
    sent: Any = decode_trusted(body)
    decided = (sent.get("decisions") or {}).get("events", [])
    events = [*(sent.get("events") or []), *decided]
    return f"the append of {', '.join(_event(each) for each in events)}"


def _event(sent: dict[str, Any]) -> str:
    data = sent.get("data") or {}
    subject = data.get("effect") or data.get("wait")
    return sent["type"] if subject is None else f"{sent['type']} {subject}"
