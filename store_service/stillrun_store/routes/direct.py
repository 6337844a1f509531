"""Appends, answered before Flask's dispatch: it costs more than all the rest of an append.

Always: the judges are those of Flask's own route, in the same order (`reading`, `append`,
`failures`); a request that is not exactly the plain one goes on to Flask, untouched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from stillrun.wire import AppendEvents

from ..append import append
from ..metrics import ROUTE
from ..store import Store
from . import http, reading
from .failures import Failures
from .limits import Uploads

__all__ = ["AppendDoor"]

_PATH = re.compile(r"/runs/([A-Za-z0-9][A-Za-z0-9._~-]{0,127})/events\Z")
_ROUTE = ("POST", "/runs/<ref>/events")  # as Flask's route is counted


class AppendDoor:
    """WSGI middleware: takes `POST /runs/{run}/events`, passes on all else."""

    def __init__(
        self,
        flask: Callable[..., Iterable[bytes]],
        store: Store,
        uploads: Uploads,
        failures: Failures,
        allowed_hosts: frozenset[str],
    ) -> None:
        self.flask = flask
        self._store = store
        self._uploads = uploads
        self._failures = failures
        self._allowed_hosts = allowed_hosts

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        plain = _PATH.match(path) if environ["REQUEST_METHOD"] == "POST" else None
        if plain is None or environ.get("QUERY_STRING"):
            return self.flask(environ, start_response)
        environ[ROUTE] = _ROUTE
        try:
            reading.check_origin(environ, self._allowed_hosts)
            reading.check_accept(environ)
            body = reading.body(environ, self._uploads, AppendEvents)
            appended, new = append(self._store, plain[1], body)
            data, mime = http.encoded(environ, appended)
        except Exception as error:
            return self._failures.shown(error, "POST", path)(environ, start_response)
        # By hand, as `http.answer` makes them: werkzeug takes as long as the append itself.
        headers = [("Content-Type", mime), ("Content-Length", str(len(data))), ("Vary", "Accept")]
        start_response("201 CREATED" if new else "200 OK", headers)
        return [data]
