"""How Flask's routes read requests and write answers, all the same.

Always: an unknown parameter is refused, never ignored; errors are problem+json (RFC 9457) that
programs branch on by code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from flask import Response, current_app, request

from stillrun import codec
from stillrun.errors import InvalidParameter, StillrunError

from . import reading

__all__ = ["answer", "body", "check_origin", "limit_param", "params", "problem", "seconds_param"]

UPLOADS = "stillrun_uploads"  # where the app keeps its places for bodies

T = TypeVar("T")


# --- before a handler


def check_origin(allowed_hosts: frozenset[str]) -> None:
    """See `reading.check_origin`."""
    reading.check_origin(request.environ, allowed_hosts)


def check_accept(*extra: str, structured: bool = True) -> None:
    """See `reading.check_accept`."""
    reading.check_accept(request.environ, *extra, structured=structured)


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
    """See `reading.raw_body`."""
    return reading.raw_body(request.environ, current_app.extensions[UPLOADS])


def body(kind: type[T]) -> T:
    """See `reading.body`."""
    return reading.body(request.environ, current_app.extensions[UPLOADS], kind)


# --- answers


class Answer(Response):
    """An answer that is whole is given to the server as one list, sent in one piece.

    What Flask gives otherwise is an iterator: sent part by part, by another thread.
    """

    def get_app_iter(self, environ: Any) -> Iterable[bytes]:
        parts = super().get_app_iter(environ)
        if self.is_streamed or isinstance(parts, tuple):  # nothing is sent after HEAD
            return parts
        whole = list(parts)
        self.close()
        return whole


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The value in the type that Accept asks for: readable JSON unless msgpack is named."""
    data, mime = encoded(request.environ, value)
    response = Answer(data, status, mimetype=mime)
    response.headers["Vary"] = "Accept"
    for name, text in (headers or {}).items():
        response.headers[name] = text
    return response


def encoded(environ: reading.Environ, value: object) -> tuple[bytes, str]:
    """The value as this request takes it, and its media type."""
    if reading.wants_msgpack(environ):
        return codec.encode_msgpack(value), codec.MSGPACK
    return codec.encode_json(value), "application/json"


def problem(error: StillrunError, path: str) -> Response:
    """An error as problem+json, always JSON; Retry-After where trying again is right."""
    facts = {key: value for key, value in error.facts.items() if value is not None}
    shown = {
        "type": f"/problems/{error.code}",
        "title": error.title,
        "status": error.status,
        "code": error.code,
        "detail": error.detail,
        "instance": path[:200],
        "retryable": error.retryable,
        **facts,
    }
    data = codec.encode_json(shown)
    response = Answer(data, error.status, mimetype="application/problem+json")
    if error.retryable:
        response.headers["Retry-After"] = "1"
    return response
