"""The values that Stillrun carries: the common part of JSON and msgpack, and nothing else.

Always: what passes `validate` can be packed, unpacked, shown as JSON and compared without loss;
equality is typed, so `1`, `1.0` and `True` are three values (DESIGN 4).
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import math
import re
from collections.abc import Mapping, Sequence

from .errors import InvalidParameter, UnsupportedValue

__all__ = [
    "MAX_DEPTH",
    "MAX_INT",
    "MIN_INT",
    "args_digest",
    "canonical",
    "check_name",
    "check_run_id",
    "from_rfc3339",
    "merge_into",
    "merge_patch",
    "plain",
    "pointer_join",
    "rfc3339",
    "same",
    "validate",
]

MAX_DEPTH = 64  # json.dumps, repr and deepcopy recurse: a deeper value could be stored, never shown
MIN_INT = -(2**63)
MAX_INT = 2**64 - 1  # what msgpack can hold; JSON alone would take more and lose it later

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}\Z")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}\Z")
_EVENT_ID = re.compile(r"[0-9a-f]{32}\Z")
_RFC3339 = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt](\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?)([Zz]|[+-]\d{2}:[0-5]\d)\Z",
    re.ASCII,
)
_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")  # more digits lead nowhere, and int() refuses thousands
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MIN_AT_MS = -62_135_596_800_000  # 0001-01-01T00:00:00Z: no instant outside these two can be shown
MAX_AT_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z


def pointer_join(pointer: str, key: str | int) -> str:
    """Append one reference token to a JSON pointer (RFC 6901)."""
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"


def validate(value: object, pointer: str = "", depth: int = 0) -> None:
    """Refuse what JSON and msgpack cannot both hold, naming the place by JSON pointer.

    Raises UnsupportedValue for: depth over 64, integers outside -2^63..2^64-1, NaN and infinities,
    strings with lone surrogates, keys that are not strings, any other type.
    """
    if not _fits(value, depth):  # pointers are built only to name what does not: they cost most
        _find(value, pointer, depth)


def _fits(value: object, depth: int) -> bool:
    """Whether `_find` would find nothing."""
    kind = type(value)
    if kind is str:
        return value.isascii() or _has_no_lone_surrogate(value)  # type: ignore[attr-defined,arg-type]
    if kind is int:
        return MIN_INT <= value <= MAX_INT  # type: ignore[operator]
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]
    if value is None or kind is bool or kind is bytes:
        return True
    if kind is dict and depth < MAX_DEPTH:
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str or not (key.isascii() or _has_no_lone_surrogate(key)):
                return False
            if not _fits(item, depth + 1):
                return False
        return True
    if kind in (list, tuple) and depth < MAX_DEPTH:
        for item in value:  # type: ignore[attr-defined]  # noqa: SIM110 - all() takes twice as long
            if not _fits(item, depth + 1):
                return False
        return True
    return False  # or of a subclass: the slow way tells


def _find(value: object, pointer: str, depth: int) -> None:
    if value is None or value is True or value is False or isinstance(value, bytes):
        return
    if isinstance(value, str):
        if not value.isascii():
            _no_lone_surrogate(value, pointer)
        return
    if isinstance(value, int):
        if not MIN_INT <= value <= MAX_INT:
            raise UnsupportedValue(pointer, "integer outside -2^63 .. 2^64-1")
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UnsupportedValue(pointer, "NaN and infinities are not JSON")
        return
    if depth >= MAX_DEPTH:
        raise UnsupportedValue(pointer, f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise UnsupportedValue(pointer, f"key {key!r:.40} is not a string")
            if not key.isascii():
                _no_lone_surrogate(key, pointer)
            _find(item, pointer_join(pointer, key), depth + 1)
        return
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _find(item, pointer_join(pointer, index), depth + 1)
        return
    raise UnsupportedValue(pointer, f"a {type(value).__name__} is neither JSON nor msgpack")


def _has_no_lone_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_lone_surrogate(text: str, pointer: str) -> None:
    if not _has_no_lone_surrogate(text):
        raise UnsupportedValue(pointer, "string with a lone surrogate")


def same(a: object, b: object) -> bool:
    """Typed equality of two values: key order is no difference, number types are."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    # Python holds True == 1 == 1.0, and 0.0 == -0.0: a diff or a digest must not.
    return type(a) is type(b) and a == b and (not isinstance(a, float) or repr(a) == repr(b))


def canonical(value: object) -> bytes:
    """One byte string per value: typed, length-prefixed, keys sorted. For digests only."""
    match value:
        case None:
            return b"n"
        case bool():
            return b"t" if value else b"f"
        case int():
            return b"i%d;" % value
        case float():
            return b"d" + repr(value).encode() + b";"
        case str():
            text = value.encode()
            return b"s%d:" % len(text) + text
        case bytes():
            return b"b%d:" % len(value) + value
        case Mapping():
            parts = [canonical(key) + canonical(value[key]) for key in sorted(value)]
            return b"m%d:" % len(parts) + b"".join(parts)
        case list() | tuple():
            return b"l%d:" % len(value) + b"".join(map(canonical, value))
    raise UnsupportedValue("", f"a {type(value).__name__} is neither JSON nor msgpack")


def args_digest(args: object) -> str:
    """32 hex digits that stand for a call's arguments: equal exactly if `same`."""
    return hashlib.sha256(canonical(args)).hexdigest()[:32]


def plain(value: object) -> object:
    """The value as JSON can show it: bytes become {"$bytes": base64}; never read back from it."""
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def merge_patch(target: object, patch: object) -> object:
    """RFC 7396 without mutation: the answer shares what did not change with `target`."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    merge_into(merged, patch)
    return merged


def merge_into(merged: dict[str, object], patch: Mapping[str, object]) -> None:
    """The same into the caller's own map; what is nested in it is replaced, not changed."""
    for key, item in patch.items():
        if item is None:
            merged.pop(key, None)
        elif type(item) in _PLAIN or (key not in merged and _is_flat(item)):
            merged[key] = item
        else:
            merged[key] = merge_patch(merged.get(key), item)


_PLAIN = frozenset({str, int, float, bool, bytes, list})


def _is_flat(patch: object) -> bool:
    """Whether a patch is a map that stands for itself where nothing was before: most are."""
    return type(patch) is dict and _PLAIN.issuperset(map(type, patch.values()))


def check_run_id(run: object) -> str:
    """The run id itself, or InvalidParameter."""
    if isinstance(run, str) and _RUN_ID.match(run):
        return run
    raise InvalidParameter("run", "a run id matches [A-Za-z0-9][A-Za-z0-9._~-]{0,127}")


def check_name(name: object, parameter: str = "name") -> str:
    """A tag, signal, agent or tool name, or InvalidParameter."""
    if isinstance(name, str) and _NAME.match(name):
        return name
    raise InvalidParameter(parameter, "a name matches [A-Za-z][A-Za-z0-9._-]{0,63}")


def check_event_id(event_id: object, pointer: str) -> str:
    """An event id (32 lowercase hex digits), or InvalidParameter."""
    if isinstance(event_id, str) and _EVENT_ID.match(event_id):
        return event_id
    raise InvalidParameter(pointer, "an event id is 32 lowercase hex digits")


def rfc3339(at_ms: int) -> str:
    """Milliseconds since 1970 as RFC 3339 in UTC, always with three decimals (sorts as text)."""
    moment = _EPOCH + datetime.timedelta(milliseconds=at_ms)
    # Not strftime: its %Y drops the leading zeros of the years before 1000.
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def from_rfc3339(text: object, parameter: str) -> int:
    """Milliseconds since 1970 (rounded down) of an RFC 3339 instant; its offset is required.

    Raises InvalidParameter for a time without zone, a leap second, an impossible date.
    """
    match = _RFC3339.match(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidParameter(parameter, "a time is RFC 3339 with an offset: 2026-11-29T10:00:00Z")
    day, clock, offset = match.groups()
    whole, _, fraction = clock.partition(".")
    zone = "+00:00" if offset in "Zz" else offset
    try:
        moment = datetime.datetime.fromisoformat(f"{day}T{whole}{zone}")
        micros = int((fraction + "000000")[:6]) if fraction else 0
        since = moment - _EPOCH
    except (ValueError, OverflowError) as error:
        raise InvalidParameter(parameter, str(error)) from None
    at_ms = (since // datetime.timedelta(microseconds=1) + micros) // 1000
    if not MIN_AT_MS <= at_ms <= MAX_AT_MS:  # an offset can lead out of the years 1 to 9999
        raise InvalidParameter(parameter, "an instant outside the years 1 to 9999 of UTC")
    return at_ms


def lookup(value: object, tokens: Sequence[str]) -> object:
    """What a JSON pointer's tokens lead to; raises LookupError where they lead nowhere."""
    for token in tokens:
        if isinstance(value, Mapping) and token in value:
            value = value[token]
        elif (
            isinstance(value, list | tuple) and _INDEX.fullmatch(token) and int(token) < len(value)
        ):
            value = value[int(token)]
        else:
            raise LookupError(token)
    return value


def pointer_tokens(pointer: str) -> list[str]:
    """The reference tokens of a JSON pointer (RFC 6901), or InvalidParameter."""
    if pointer == "":
        return []
    if not pointer.startswith("/"):
        raise InvalidParameter("pointer", "a JSON pointer is empty or starts with '/'")
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/")]
