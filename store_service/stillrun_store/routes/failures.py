"""What a request is answered when it fails, by whichever door it came.

Always: problem+json with a code; a defect of ours is logged with its traceback and named by an id,
and tells nothing of itself.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

from flask import Response
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import MethodNotAllowed as WerkzeugMethodNotAllowed
from werkzeug.exceptions import NotFound as WerkzeugNotFound

from stillrun.errors import Internal, MethodNotAllowed, NotFound, StillrunError

from . import http

__all__ = ["Failures"]

_log = logging.getLogger(__name__)


class Failures:
    """Answers for one app. `refused` is told each problem's code."""

    def __init__(self, refused: Callable[[str], None]) -> None:
        self._refused = refused

    def shown(self, error: Exception, method: str, path: str) -> Response:
        """The answer to a request of this method and path; called where the error was caught."""
        if isinstance(error, StillrunError):
            if error.status >= 500 and not error.retryable:
                _log.error("%s %s: %s: %s", method, path, error.code, error.detail)
            known = error
        elif isinstance(error, HTTPException):
            known = _routed(error, path)
        else:
            request_id = uuid.uuid4().hex
            _log.error("%s %s failed, request_id %s", method, path, request_id, exc_info=error)
            detail = "a defect of the store; its log has the traceback"
            known = Internal(detail, request_id=request_id)
        self._refused(known.code)
        response = http.problem(known, path)
        if isinstance(error, WerkzeugMethodNotAllowed):
            response.headers["Allow"] = _methods(error)
        return response


def _routed(error: HTTPException, path: str) -> StillrunError:
    """What Flask and werkzeug refuse, in our words."""
    if isinstance(error, WerkzeugNotFound):
        return NotFound(f"nothing at {path!r:.120}; GET / lists what is")
    if isinstance(error, WerkzeugMethodNotAllowed):
        return MethodNotAllowed(f"this path takes {_methods(error)}")
    known = StillrunError(error.description or error.name)
    known.code, known.status = "malformed_body", error.code or 500
    return known


def _methods(error: WerkzeugMethodNotAllowed) -> str:
    return ", ".join(sorted(error.valid_methods or ()))
