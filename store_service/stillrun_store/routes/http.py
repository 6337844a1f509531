"""How requests are read and answers written, the same on every route.

Always: Accept, Host, Origin and size are judged before a handler writes; an unknown parameter or
field is refused, never ignored; errors are problem+json (RFC 9457) that programs branch on by code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from flask import Response, current_app, request

from stillrun import codec
from stillrun.errors import (
    CrossOrigin,
    InvalidParameter,
    MalformedBody,
    NotAcceptable,
    StillrunError,
    TooLarge,
    UnsupportedMediaType,
)
from stillrun.origin import host_is_ours, origin_is_ours
from stillrun.wire import MAX_BODY_BYTES, AppendEvents

__all__ = ["answer", "body", "check_origin", "limit_param", "params", "problem", "seconds_param"]

MSGPACK_TYPES = frozenset({codec.MSGPACK, "application/msgpack", "application/x-msgpack"})
JSON_TYPES = frozenset({"application/json", "application/x-www-form-urlencoded", ""})
UPLOADS = "stillrun_uploads"  # where the app keeps its places for bodies, and
REFUSED = "stillrun_refused"  # what it is told of each problem's code

T = TypeVar("T")


# --- before a handler


def check_origin(allowed_hosts: frozenset[str]) -> None:
    """Refuse foreign hosts, and foreign pages on unsafe methods: the port is open to a browser."""
    if not host_is_ours(request.headers.get("Host"), allowed_hosts):
        raise CrossOrigin(
            f"host {request.headers.get('Host')!r:.80} is not allowed here; set ALLOWED_HOSTS"
        )
    origin = request.headers.get("Origin")
    if not origin_is_ours(request.method, origin, allowed_hosts):
        raise CrossOrigin(f"origin {origin!r:.80} is not allowed here; set ALLOWED_HOSTS")


def check_accept(*extra: str, structured: bool = True) -> None:
    """Refuse what cannot be served in any type of Accept, before anything is written.

    `structured`: JSON and msgpack are offered too.
    """
    accept = request.accept_mimetypes
    if not request.headers.get("Accept"):
        return
    offered = ["application/json", *sorted(MSGPACK_TYPES), *extra] if structured else list(extra)
    if not any(accept[mime] > 0 for mime in offered):
        named = ["application/json", *extra] if structured else extra
        raise NotAcceptable(f"this path can answer {', '.join(named)}")


def wants_msgpack() -> bool:
    """msgpack only when it is named: `*/*` is a person with curl."""
    accept = request.accept_mimetypes
    named = [mime for mime, quality in accept if mime in MSGPACK_TYPES and quality > 0]
    return bool(named) and accept[named[0]] >= _json_quality(accept)


def _json_quality(accept: Any) -> float:
    return max((quality for mime, quality in accept if mime == "application/json"), default=0.0)


# --- parameters and bodies


def params(*allowed: str) -> Mapping[str, str]:
    """The query parameters; an unknown or a repeated one is InvalidParameter."""
    found: dict[str, str] = {}
    for name, values in request.args.lists():
        if name not in allowed:
            known = ", ".join(allowed) or "none"
            raise InvalidParameter(name[:60], f"unknown parameter; this path takes: {known}")
        if len(values) > 1:
            raise InvalidParameter(name, "given more than once")
        found[name] = values[0]
    return found


def whole_param(given: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """A whole number from `low` to `high`, or InvalidParameter."""
    text = given.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 18:
        raise InvalidParameter(name, f"{text!r:.40} is not a whole number")
    if not low <= int(text) <= high:
        raise InvalidParameter(name, f"from {low} to {high}")
    return int(text)


def limit_param(given: Mapping[str, str], default: int, high: int) -> int:
    """`limit`: how many rows at the most."""
    return whole_param(given, "limit", default, 1, high)


def seconds_param(given: Mapping[str, str], name: str, high: float) -> float:
    """Seconds from 0 to `high`; 0 where it is left out."""
    text = given.get(name)
    if text is None:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        raise InvalidParameter(name, f"{text!r:.40} is not a number of seconds") from None
    if not 0 <= value <= high:
        raise InvalidParameter(name, f"from 0 to {high:g} seconds")
    return value


def one_of(given: Mapping[str, str], name: str, words: tuple[str, ...]) -> str | None:
    """One of these words, or None where it is left out."""
    text = given.get(name)
    if text is not None and text not in words:
        raise InvalidParameter(name, f"{text!r:.40} is none of {', '.join(words)}")
    return text


def raw_body() -> bytes:
    """The body's bytes, counted as they arrive: chunked ones too."""
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise UnsupportedMediaType("compressed bodies are not taken")
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise TooLarge(f"a body has at most {MAX_BODY_BYTES} bytes", limit=MAX_BODY_BYTES)
    with current_app.extensions[UPLOADS].place(request.content_length):
        data = request.stream.read(MAX_BODY_BYTES + 1)
    if len(data) > MAX_BODY_BYTES:
        raise TooLarge(f"a body has at most {MAX_BODY_BYTES} bytes", limit=MAX_BODY_BYTES)
    # granian hands out what came before a client vanished as if it were the whole body.
    if request.content_length is not None and len(data) < request.content_length:
        raise MalformedBody(f"it ends after {len(data)} of {request.content_length} bytes")
    return data


def body(kind: type[T]) -> T:
    """The request's body as a wire struct; JSON also without headers, as `curl -d` sends it.

    A value is shown deeper than it was sent, at the most as state.control.waits.w1.default: what
    is taken must stay within MAX_DEPTH there too, or the run's own worker could not read it.
    """
    data = raw_body()
    mime = (request.mimetype or "").lower()
    depth = 1 if kind is AppendEvents else 4
    if mime in MSGPACK_TYPES:
        value = codec.decode_msgpack(data, depth) if data else {}
    elif mime in JSON_TYPES:
        value = codec.decode_json(data, depth) if data.strip() else {}
    else:
        raise UnsupportedMediaType(f"{mime!r:.60}: send JSON or {codec.MSGPACK}")
    converted: T = codec.convert(value, kind)
    return converted


# --- answers


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The value in the type that Accept asks for: readable JSON unless msgpack is named."""
    if wants_msgpack():
        response = Response(codec.encode_msgpack(value), status, mimetype=codec.MSGPACK)
    else:
        response = Response(codec.encode_json(value), status, mimetype="application/json")
    response.headers["Vary"] = "Accept"
    for name, text in (headers or {}).items():
        response.headers[name] = text
    return response


def problem(error: StillrunError) -> Response:
    """An error as problem+json, always JSON; Retry-After where trying again is right."""
    facts = {key: value for key, value in error.facts.items() if value is not None}
    shown = {
        "type": f"/problems/{error.code}",
        "title": error.title,
        "status": error.status,
        "code": error.code,
        "detail": error.detail,
        "instance": request.path[:200],
        "retryable": error.retryable,
        **facts,
    }
    data = codec.encode_json(shown)
    current_app.extensions[REFUSED](error.code)
    response = Response(data, error.status, mimetype="application/problem+json")
    if error.retryable:
        response.headers["Retry-After"] = "1"
    return response
