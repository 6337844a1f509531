"""The composition root: a Flask app over one store."""

from __future__ import annotations

import logging
import uuid

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import MethodNotAllowed as WerkzeugMethodNotAllowed

from stillrun.errors import Internal, MethodNotAllowed, StillrunError

from .metrics import ROUTE, Metrics
from .routes import http, operations, people, runs, workers
from .routes.limits import Uploads, Waiting
from .store import Store

__all__ = ["create_app"]

_log = logging.getLogger(__name__)

OWN_ACCEPT = (
    "runs.log",
    "workers.get_blob",
    "operations.show_metrics",
)  # they answer in other types and judge it themselves


def create_app(store: Store, *, allowed_hosts: frozenset[str] = frozenset()) -> Flask:
    """The HTTP door of `store`. `allowed_hosts`: names besides the loopback ones."""
    app = Flask(__name__, static_folder=None)
    app.url_map.strict_slashes = True
    app.url_map.merge_slashes = False
    waiting = Waiting()
    metrics = Metrics(store)
    app.extensions[http.UPLOADS] = Uploads()
    app.extensions[http.REFUSED] = metrics.refused
    app.register_blueprint(operations.blueprint(store, metrics))
    app.register_blueprint(runs.blueprint(store, waiting))
    app.register_blueprint(people.blueprint(store, waiting))
    app.register_blueprint(workers.blueprint(store, waiting))

    @app.before_request
    def judge() -> None:
        if request.url_rule is not None:
            request.environ[ROUTE] = (request.method, request.url_rule.rule)
        http.check_origin(allowed_hosts)
        if request.endpoint not in OWN_ACCEPT:
            http.check_accept()

    @app.errorhandler(StillrunError)
    def refused(error: StillrunError) -> Response:
        if error.status >= 500 and not error.retryable:
            _log.error("%s %s: %s: %s", request.method, request.path, error.code, error.detail)
        return http.problem(error)

    @app.errorhandler(HTTPException)
    def routed(error: HTTPException) -> Response:
        if isinstance(error, WerkzeugMethodNotAllowed):
            methods = ", ".join(sorted(error.valid_methods or ()))
            response = http.problem(MethodNotAllowed(f"this path takes {methods}"))
            response.headers["Allow"] = methods
            return response
        known = StillrunError(error.description or error.name)
        known.code, known.status = "malformed_body", error.code or 500
        return http.problem(known)

    @app.errorhandler(Exception)
    def broken(error: Exception) -> Response:
        request_id = uuid.uuid4().hex
        _log.exception("%s %s failed, request_id %s", request.method, request.path, request_id)
        detail = "a defect of the store; its log has the traceback"
        return http.problem(Internal(detail, request_id=request_id))

    # Outermost: whatever answers, Flask or a shorter way, is counted; it notes its ROUTE.
    app.wsgi_app = metrics.counted(app.wsgi_app)  # type: ignore[method-assign]
    return app
