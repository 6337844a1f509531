"""One HTTP exchange with a model's endpoint, and what each way in which it can go wrong means.

Always: the key is read from its file for each call, goes into one header of one request to
MODEL_URL and nowhere else: no redirect is followed, and every text that comes back is scrubbed of
it; an answer is bounded in bytes and in time; nothing here repeats anything.

    refused, no such host, 408, 409, 425, 429, 503, 529     Busy: nothing was done
    read timeout, cut body, no JSON, 500, 502, 504, ...     AnswerLate, AnswerLost: in doubt
    401, 403; 402, 404, 405, 3xx; 413 and what says so;
    other 4xx                                               a ModelError for good
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import requests
import urllib3
from requests.auth import AuthBase

from stillrun.codec import encode_json
from stillrun.context import spellings

from .errors import (
    AnswerLate,
    AnswerLost,
    AnswerTooLarge,
    Busy,
    ContextTooLong,
    KeyRefused,
    ModelError,
    RequestRefused,
    SettingRefused,
)

__all__ = ["MAX_ANSWER_BYTES", "MAX_RETRY_AFTER_S", "Endpoint", "Exchange"]

CONNECT_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 8 << 20  # no reply is that long: a defect, or a file behind a wrong URL
CHUNK_BYTES = 64 << 10
MAX_KEY_CHARS = 16 << 10  # tokens of cloud accounts have thousands; a larger file is a wrong one
MAX_SAID_CHARS = 500  # of what the endpoint says about an error
RETRY_S = 1.0  # where the endpoint does not say when; the worker adds its backoff
MAX_RETRY_AFTER_S = 3_600.0  # a hostile or mistaken header must not park a run for years
REDACTED = "[MODEL_KEY]"

NOTHING_WAS_DONE = frozenset({408, 409, 425, 429, 503, 529})
_TOO_LONG = re.compile(
    r"context.{0,12}(length|window|size)|maximum context|prompt (is|contains) .{0,40}too (long|"
    r"large|many)|too many (input )?tokens|input (token count|length).{0,60}exceed|"
    r"prompt.{0,20} too long",
    re.IGNORECASE | re.DOTALL,
)

Headers = Callable[[str], Mapping[str, str]]


class Exchange:
    """An answer, scrubbed; `scrub` is for what is decoded from a text in it."""

    def __init__(self, answer: dict[str, Any], key: str) -> None:
        self.answer = answer
        self._key = key

    def scrub(self, value: Any) -> Any:
        """The plain value without the key, and with text that can be stored."""
        return _scrubbed(value, self._key)


class Endpoint:
    """Where a model lives: base URL, key file, how long an answer may take in seconds.

    One session per call: a kept connection that the endpoint has closed would be one more way not
    to know what was done.
    """

    def __init__(
        self,
        url: str,
        *,
        key_file: Path | None = None,
        timeout_s: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url.rstrip("/")
        self._key_file, self._timeout_s, self._clock = key_file, timeout_s, clock

    def post(self, path: str, body: Mapping[str, Any], headers: Headers) -> Exchange:
        """POST the body as JSON; raises Busy or a ModelError.

        `headers`: those of the API, made of the key, which is empty without a key file.
        """
        key = self._key()
        deadline = self._clock() + self._timeout_s
        try:
            with requests.Session() as session:
                response = session.post(
                    self.url + path,
                    data=encode_json(body, compact=True),
                    headers={
                        "Content-Type": "application/json",
                        "Accept": "application/json",
                        "Accept-Encoding": "identity",  # a bound on bytes is a bound on memory
                    },
                    # Set last, or a ~/.netrc would put another password in its place.
                    auth=_Headers(headers(key)),
                    timeout=(CONNECT_TIMEOUT_S, self._timeout_s),
                    stream=True,
                    allow_redirects=False,  # the key is for this host only
                )
                with response:
                    data = self._read(response, deadline)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise self._no_answer(error, key) from None
        return self._judged(response, data, key)

    def _key(self) -> str:
        if self._key_file is None:
            return ""
        try:
            with self._key_file.open("rb") as file:
                raw = file.read(MAX_KEY_CHARS + 1)
        except OSError as error:
            # Perhaps it is being replaced right now.
            text = f"MODEL_KEY_FILE cannot be read: {type(error).__name__}"
            raise Busy(text, retry_in_s=RETRY_S) from None
        key = raw.decode("latin-1").strip()
        # Checked here: the exception of the HTTP client for a bad header shows its whole value.
        if len(raw) > MAX_KEY_CHARS or not re.fullmatch(r"[!-~]+", key):
            raise KeyRefused("MODEL_KEY_FILE holds no key: one line of visible ASCII is expected")
        return key

    def _read(self, response: requests.Response, deadline: float) -> bytes:
        """The body; bounded, also where each byte comes just in time for a read timeout."""
        parts: list[bytes] = []
        size = 0
        # read1: one read of the socket. `read(n)` would wait for n bytes past any deadline.
        while part := response.raw.read1(CHUNK_BYTES, decode_content=True):
            size += len(part)
            parts.append(part)
            if size > MAX_ANSWER_BYTES:
                raise AnswerTooLarge(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
            if self._clock() > deadline:
                raise AnswerLate(f"no whole answer within {self._timeout_s:g} s")
        return b"".join(parts)

    def _no_answer(self, error: Exception, key: str) -> Exception:
        # Scrubbed before it is cut: half a key is found by nobody.
        text = _scrubbed(str(error), key)[:MAX_SAID_CHARS]
        if _not_connected(error):
            return Busy(f"{self.url} cannot be reached: {text}", retry_in_s=_soon(RETRY_S))
        if isinstance(error, requests.ReadTimeout | urllib3.exceptions.ReadTimeoutError):
            return AnswerLate(f"no answer within {self._timeout_s:g} s")
        if isinstance(error, requests.exceptions.InvalidURL | requests.exceptions.InvalidSchema):
            return SettingRefused(f"MODEL_URL: {text}")
        return AnswerLost(f"the answer broke off: {text}")

    def _judged(self, response: requests.Response, data: bytes, key: str) -> Exchange:
        status = response.status_code
        answer = _json(data, key)
        if 200 <= status < 300 and isinstance(answer, dict):
            error = answer.get("error")
            if not error or any(answer.get(name) for name in ("choices", "content")):
                return Exchange(answer, key)
            # Routers in front of several endpoints say 200 and put the error inside.
            inner = error.get("code") if isinstance(error, dict) else None
            status = inner if isinstance(inner, int) and 400 <= inner < 600 else 500
        said = _said(answer) or _scrubbed(data.decode(errors="replace"), key)[:MAX_SAID_CHARS]
        text = f"HTTP {status}: {said}"[:MAX_SAID_CHARS]
        if 200 <= status < 300:
            raise AnswerLost(f"the answer is no JSON object, or was cut: {text}")
        if 300 <= status < 400:
            where = _scrubbed(response.headers.get("Location", "?"), key)
            raise SettingRefused(f"HTTP {status}: MODEL_URL leads to {where}, name that instead")
        raise _refusal(status, said, text, response.headers)


class _Headers(AuthBase):
    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers.update(self._headers)
        return request


def _not_connected(error: Exception) -> bool:
    """Whether no byte of the request can have reached the endpoint."""
    if isinstance(error, requests.ConnectTimeout | requests.exceptions.ProxyError):
        return True
    reason: object = error.args[0] if error.args else None
    reason = getattr(reason, "reason", reason)
    return isinstance(
        reason, urllib3.exceptions.NewConnectionError | urllib3.exceptions.ConnectTimeoutError
    ) or ("CERTIFICATE_VERIFY_FAILED" in str(error))


def _refusal(status: int, said: str, text: str, headers: Mapping[str, str]) -> Exception:
    """What an error status says about the call."""
    if status in NOTHING_WAS_DONE:
        return Busy(text, retry_in_s=_soon(_retry_after_s(headers.get("Retry-After"))))
    if status >= 500 or status < 400:
        return AnswerLost(text)
    if status in (401, 403):
        return KeyRefused(f"the endpoint refuses the key of MODEL_KEY_FILE: {text}")
    # 404 and 405: no such model, or a wrong path. Account, name and address can be mended
    # while a run waits.
    kind: type[ModelError] = SettingRefused if status in (402, 404, 405) else RequestRefused
    if status == 413 or _TOO_LONG.search(said):
        kind = ContextTooLong
        text = f"the conversation is too long for the model: {text}"
    return kind(text)


def _soon(seconds: float) -> float:
    """A little later than asked for: runs that were refused together need not return together."""
    return seconds * random.uniform(1.0, 1.1)


def _retry_after_s(value: str | None) -> float:
    """Seconds from a Retry-After header: a number, or a date; bounded."""
    if value is None:
        return RETRY_S
    try:
        seconds = float(value)
    except ValueError:
        try:
            when = parsedate_to_datetime(value)
        except ValueError:
            return RETRY_S
        # RFC 5322 writes "-0000" for a time without zone; HTTP dates are GMT.
        when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        seconds = (when - datetime.now(UTC)).total_seconds()
    # Not max(min()): NaN would pass it.
    return min(seconds, MAX_RETRY_AFTER_S) if seconds > 0 else 0.0


def _json(data: bytes, key: str) -> Any:
    # Not the codec: an answer is not refused as a whole for a lone surrogate in a cut emoji, or a
    # NaN among numbers that nobody reads.
    try:
        return _scrubbed(json.loads(data), key)
    except (ValueError, RecursionError):
        return None


def _said(answer: Any) -> str:
    """What an error body says, whatever its shape: code, type and message."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    if isinstance(error, dict):
        parts = [error.get(name) for name in ("code", "type", "message", "detail")]
        return " ".join(str(part) for part in parts if part)
    return error if isinstance(error, str) else ""


def _scrubbed(value: Any, key: str) -> Any:
    return _without(spellings(key), value)


def _without(shapes: Sequence[str], value: Any) -> Any:
    if isinstance(value, str):
        for shape in shapes:
            value = value.replace(shape, REDACTED)
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_without(shapes, name): _without(shapes, item) for name, item in value.items()}
    return [_without(shapes, item) for item in value] if isinstance(value, list) else value
