"""The composition root: a Flask app over one store."""

from __future__ import annotations

from flask import Flask, request
from werkzeug.exceptions import HTTPException

from stillrun.errors import StillrunError

from .metrics import ROUTE, Metrics
from .routes import caches, http, operations, people, runs, workers
from .routes.direct import AppendDoor
from .routes.failures import Failures
from .routes.limits import Uploads, Waiting
from .store import Store

__all__ = ["create_app"]

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
    waiting, uploads = Waiting(store.turns), Uploads()
    metrics = Metrics(store)
    failures = Failures(metrics.refused)
    app.extensions[http.UPLOADS] = uploads
    app.register_blueprint(operations.blueprint(store, metrics))
    app.register_blueprint(runs.blueprint(store, waiting))
    app.register_blueprint(caches.blueprint(store))
    app.register_blueprint(people.blueprint(store, waiting))
    app.register_blueprint(workers.blueprint(store, waiting))

    @app.before_request
    def judge() -> None:
        if request.url_rule is not None:
            request.environ[ROUTE] = (request.method, request.url_rule.rule)
        http.check_origin(allowed_hosts)
        if request.endpoint not in OWN_ACCEPT:
            http.check_accept()

    for kind in (StillrunError, HTTPException, Exception):
        app.register_error_handler(
            kind, lambda error: failures.shown(error, request.method, request.path)
        )
    door = AppendDoor(app.wsgi_app, store, uploads, failures, allowed_hosts)
    # Outermost: whatever answers, Flask or a shorter way, is counted; it notes its ROUTE.
    app.wsgi_app = metrics.counted(door)  # type: ignore[method-assign]
    return app
