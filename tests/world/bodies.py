"""What may come in: bodies, names and keys, checked once, at the door.

Equality of bodies is typed: ``1``, ``1.0`` and ``true`` are three values (see ``same``)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from .errors import InvalidBody, InvalidParameter, Malformed

__all__ = [
    "MAILS_FIELDS",
    "MAX_BODY_BYTES",
    "SEAT_FIELDS",
    "Check",
    "boolean",
    "check_fields",
    "check_key",
    "check_name",
    "name",
    "parse_object",
    "price",
    "price_or_none",
    "run_id",
    "same",
]

Check = Callable[[object], Any]

MAX_BODY_BYTES = 64 << 10  # a mail is the largest thing here; the ledger keeps every body
MAX_TEXT_CHARS = 16_384
MAX_PRICE = 1_000_000  # a typing error, not a fare
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}")  # DESIGN.md §4
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._~-]{0,63}")
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~:-]{0,254}")  # goes into a path without quoting


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in ``raw``, or ``Malformed``."""
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the body is not JSON in UTF-8: {error}") from None
    if not isinstance(body, dict):
        raise Malformed("the body is not a JSON object")
    return body


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is not JSON")


def check_fields(
    body: Mapping[str, Any],
    required: Mapping[str, Check],
    optional: Mapping[str, Check] | None = None,
) -> dict[str, Any]:
    """``body`` with every field checked, in the order of the contract; no unknown fields."""
    optional = optional or {}
    unknown = sorted(set(body) - set(required) - set(optional))
    if unknown:
        raise InvalidBody(f"unknown field {unknown[0]!r}"[:200])
    missing = [field for field in required if field not in body]
    if missing:
        raise InvalidBody(f"field {missing[0]!r} is missing")
    checked = {}
    for field, check in {**required, **optional}.items():
        if field in body:
            try:
                checked[field] = check(body[field])
            except ValueError as error:
                raise InvalidBody(f"field {field!r}: {error}") from None
    return checked


def check_name(value: str, what: str) -> str:
    """A name from a path or a query, or ``InvalidParameter``."""
    if not NAME.fullmatch(value):
        raise InvalidParameter(f"{what} must match {NAME.pattern}")
    return value


def check_key(value: str) -> str:
    """An idempotency key, or ``InvalidParameter`` with code ``invalid_key``."""
    if not KEY.fullmatch(value):
        raise InvalidParameter(f"a key must match {KEY.pattern}", code="invalid_key")
    return value


def text(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT_CHARS:
        raise ValueError(f"must be a string of at most {MAX_TEXT_CHARS} characters")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("has a lone surrogate, which no UTF-8 can carry") from None
    return value


def name(value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError(f"must be a string that matches {NAME.pattern}")
    return value


def run_id(value: object) -> str:
    if not isinstance(value, str) or not RUN_ID.fullmatch(value):
        raise ValueError(f"must be a string that matches {RUN_ID.pattern}")
    return value


def boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def price(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number")
    if not 0 <= value <= MAX_PRICE:  # also refuses an infinite one
        raise ValueError(f"must be between 0 and {MAX_PRICE}")
    return value


def price_or_none(value: object) -> int | float | None:
    return None if value is None else price(value)


def address(value: object) -> str:
    checked = text(value)
    if not checked:
        raise ValueError("must not be empty")
    return checked


SEAT_FIELDS: Mapping[str, Check] = {"run": run_id, "route": name, "carrier": name, "seat": name}
MAILS_FIELDS: Mapping[str, Check] = {"run": run_id, "to": address, "subject": text, "body": text}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two bodies say the same, types included."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
