"""What the world refuses, each with the status and the code that a caller branches on.

Refused
  Malformed         400  the body or the key cannot be read
  InvalidParameter  400  a name in the path or the query is wrong
  NotThere          404  no such fare, key or path; the code says which
  InProgress        409  the key is known, its call is still being worked on: ask again
  InvalidBody       422  the body can be read and breaks the contract
  KeyReused         422  a known key came with another body
  NotDone           503  nothing was done: safe to repeat
  Overloaded        503  too many requests are being held; this one was not received
  Unavailable       503  this request did nothing; an earlier one with the same key did or may
"""

from __future__ import annotations

__all__ = [
    "InProgress",
    "InvalidBody",
    "InvalidParameter",
    "KeyReused",
    "Malformed",
    "NotDone",
    "NotThere",
    "Overloaded",
    "Refused",
    "Unavailable",
]


class Refused(Exception):
    """The request is answered with ``status`` and ``{"code", "detail"}``."""

    status, code = 400, "refused"

    def __init__(self, detail: str, *, code: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or self.code


class Malformed(Refused):
    status, code = 400, "malformed_body"


class InvalidParameter(Refused):
    status, code = 400, "invalid_parameter"


class NotThere(Refused):
    status, code = 404, "not_found"


class InProgress(Refused):
    status, code = 409, "in_progress"


class InvalidBody(Refused):
    status, code = 422, "invalid_body"


class KeyReused(Refused):
    status, code = 422, "key_reused"


class NotDone(Refused):
    status, code = 503, "not_done"


class Overloaded(Refused):
    status, code = 503, "overloaded"


class Unavailable(Refused):
    status, code = 503, "unavailable"
