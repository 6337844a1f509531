"""The agent service as a Flask application: who is let in, what is refused, how errors are told.

Always: an error is problem+json with a code of the shared tree; what a request asks for beyond its
contract (a parameter, a media type, a foreign origin) is refused before its handler runs.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from typing import Any

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, RequestEntityTooLarge

from stillrun import errors
from stillrun.client import StoreClient
from stillrun.codec import encode_json
from stillrun.wire import MAX_BODY_BYTES

from .config import Config
from .http import RETRY_AFTER_S, check_origin, problem
from .metrics import CONTENT_TYPE, Metrics
from .registry import Registry
from .routes import add_routes

__all__ = ["create_app"]

_log = logging.getLogger("stillrun.agent")

_PROBLEM = "application/problem+json"
JSON_TYPES = ["application/json", _PROBLEM]
# A scraper names the version with the type, a browser does not.
TEXT_TYPES = ["text/plain", "text/plain;version=0.0.4", "text/plain;version=0.0.4;charset=utf-8"]


def create_app(
    config: Config,
    *,
    registry: Registry,
    store: StoreClient,
    is_ready: Callable[[], bool] = lambda: True,
    stop: threading.Event | None = None,
    metrics: Metrics | None = None,
) -> Flask:
    """The application. `is_ready`: whether the worker takes runs; `stop`, once set, ends polls.

    `metrics`: of the worker beside it; without one there is no GET /metrics.
    """
    app = Flask("stillrun_agent", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.url_map.merge_slashes = False
    _add_errors(app)

    @app.before_request
    def let_in() -> None:
        check_origin(
            request.method,
            request.headers.get("Host", ""),
            request.headers.get("Origin"),
            config.allowed_hosts,
        )
        offered = TEXT_TYPES if request.endpoint == "show_metrics" else JSON_TYPES
        if not request.accept_mimetypes.best_match(offered) and "Accept" in request.headers:
            raise errors.NotAcceptable(f"this path answers {offered[0]}")

    add_routes(app, registry, store, is_ready, stop or threading.Event())
    if metrics is not None:
        _add_metrics(app, metrics)
    return app


def _add_metrics(app: Flask, metrics: Metrics) -> None:
    @app.get("/metrics")
    def show_metrics() -> Response:
        return Response(metrics.text(), content_type=CONTENT_TYPE)


def _add_errors(app: Flask) -> None:
    @app.errorhandler(errors.StillrunError)
    def refused(error: errors.StillrunError) -> Response:
        return _told(error)

    @app.errorhandler(HTTPException)
    def not_served(error: HTTPException) -> Response:
        if isinstance(error, MethodNotAllowed):
            allowed = ", ".join(sorted(error.valid_methods or ()))
            answer = _told(errors.MethodNotAllowed(f"allowed here: {allowed}"))
            answer.headers["Allow"] = allowed
            return answer
        if isinstance(error, RequestEntityTooLarge):
            return _told(errors.TooLarge(f"a body has at most {MAX_BODY_BYTES} bytes"))
        if error.code == 404:
            return _told(errors.NotFound(f"nothing lives at {request.path!r:.200}"))
        return _told(errors.MalformedBody(error.description or error.name))

    @app.errorhandler(Exception)
    def defect(error: Exception) -> Response:
        request_id = uuid.uuid4().hex
        _log.error("request %s failed", request_id, exc_info=error)
        return _told(errors.Internal("a defect; the service's log has more", request_id=request_id))


def _told(error: errors.StillrunError) -> Response:
    shown: dict[str, Any] = problem(error, request.path)
    answer = Response(encode_json(shown), status=error.status, mimetype=_PROBLEM)
    if error.retryable:
        answer.headers["Retry-After"] = str(RETRY_AFTER_S)
    return answer
