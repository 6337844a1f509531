"""How a request is judged and read, from its WSGI environ: the same by every door to a route.

Always: Host, Origin, Accept and size are judged before a handler writes; an unknown field is
refused, never ignored.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header, parse_options_header
from werkzeug.sansio.utils import get_content_length
from werkzeug.wsgi import get_input_stream

from stillrun import codec
from stillrun.errors import (
    CrossOrigin,
    MalformedBody,
    NotAcceptable,
    TooLarge,
    UnsupportedMediaType,
)
from stillrun.origin import host_is_ours, origin_is_ours
from stillrun.wire import MAX_BODY_BYTES, AppendEvents

from .limits import Uploads

__all__ = ["body", "check_accept", "check_origin", "raw_body", "wants_msgpack"]

MSGPACK_TYPES = frozenset({codec.MSGPACK, "application/msgpack", "application/x-msgpack"})
JSON_TYPES = frozenset({"application/json", "application/x-www-form-urlencoded", ""})
REMEMBERED = 64  # headers: a client sends the same ones again and again, and they are dear to parse

Environ = dict[str, Any]
T = TypeVar("T")


def check_origin(environ: Environ, allowed_hosts: frozenset[str]) -> None:
    """Refuse foreign hosts, and foreign pages on unsafe methods: the port is open to a browser."""
    host = environ.get("HTTP_HOST")
    if not _host_is_ours(host, allowed_hosts):
        raise CrossOrigin(f"host {host!r:.80} is not allowed here; set ALLOWED_HOSTS")
    origin = environ.get("HTTP_ORIGIN")
    if origin is not None and not origin_is_ours(environ["REQUEST_METHOD"], origin, allowed_hosts):
        raise CrossOrigin(f"origin {origin!r:.80} is not allowed here; set ALLOWED_HOSTS")


_host_is_ours = lru_cache(REMEMBERED)(host_is_ours)


class _Accepted(NamedTuple):
    """What an Accept header says of our types. `msgpack`: it is asked for, before JSON."""

    header: MIMEAccept
    structured: bool
    msgpack: bool


@lru_cache(REMEMBERED)
def _accepted(text: str) -> _Accepted:
    header = parse_accept_header(text, MIMEAccept)
    named = [mime for mime, quality in header if mime in MSGPACK_TYPES and quality > 0]
    json_quality = max((q for mime, q in header if mime == "application/json"), default=0.0)
    return _Accepted(
        header,
        any(header[mime] > 0 for mime in ("application/json", *sorted(MSGPACK_TYPES))),
        bool(named) and header[named[0]] >= json_quality,
    )


def check_accept(environ: Environ, *extra: str, structured: bool = True) -> None:
    """Refuse what cannot be served in any type of Accept, before anything is written.

    `structured`: JSON and msgpack are offered too.
    """
    text = environ.get("HTTP_ACCEPT")
    if not text:
        return
    accepted = _accepted(text)
    fits = structured and accepted.structured
    if not fits and not any(accepted.header[mime] > 0 for mime in extra):
        named = ["application/json", *extra] if structured else extra
        raise NotAcceptable(f"this path can answer {', '.join(named)}")


def wants_msgpack(environ: Environ) -> bool:
    """msgpack only when it is named: `*/*` is a person with curl."""
    text = environ.get("HTTP_ACCEPT")
    return bool(text) and _accepted(text).msgpack


def raw_body(environ: Environ, uploads: Uploads) -> bytes:
    """The body's bytes, counted as they arrive: chunked ones too."""
    if environ.get("HTTP_CONTENT_ENCODING", "identity") != "identity":
        raise UnsupportedMediaType("compressed bodies are not taken")
    length = _length(environ.get("CONTENT_LENGTH"), environ.get("HTTP_TRANSFER_ENCODING"))
    if (length or 0) > MAX_BODY_BYTES:
        raise TooLarge(f"a body has at most {MAX_BODY_BYTES} bytes", limit=MAX_BODY_BYTES)
    with uploads.place(length):
        data = _read(environ, length)
    if len(data) > MAX_BODY_BYTES:
        raise TooLarge(f"a body has at most {MAX_BODY_BYTES} bytes", limit=MAX_BODY_BYTES)
    # granian hands out what came before a client vanished as if it were the whole body.
    if length is not None and len(data) < length:
        raise MalformedBody(f"it ends after {len(data)} of {length} bytes")
    return data


_length = lru_cache(REMEMBERED)(get_content_length)


def _read(environ: Environ, length: int | None) -> bytes:
    """Up to `length` bytes, or one more than a body may have where nobody knows its length."""
    if length is not None:
        # werkzeug's stream takes a buffer of all that is asked for, whatever there is to read.
        data: bytes = environ["wsgi.input"].read(length) if length else b""
        return data
    return get_input_stream(environ).read(MAX_BODY_BYTES + 1)


@lru_cache(REMEMBERED)
def _mime(content_type: str) -> str:
    return parse_options_header(content_type)[0].lower()


def body(environ: Environ, uploads: Uploads, kind: type[T]) -> T:
    """The request's body as a wire struct; JSON also without headers, as `curl -d` sends it.

    A value is shown deeper than it was sent, at the most as state.control.waits.w1.default: what
    is taken must stay within MAX_DEPTH there too, or the run's own worker could not read it.
    """
    data = raw_body(environ, uploads)
    mime = _mime(environ.get("CONTENT_TYPE") or "")
    depth = 1 if kind is AppendEvents else 4
    if mime in MSGPACK_TYPES:
        value = codec.decode_msgpack(data, depth) if data else {}
    elif mime in JSON_TYPES:
        value = codec.decode_json(data, depth) if data.strip() else {}
    else:
        raise UnsupportedMediaType(f"{mime!r:.60}: send JSON or {codec.MSGPACK}")
    converted: T = codec.convert(value, kind)
    return converted
