"""What is here, whether it works, and what each error code means."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response

from stillrun.errors import CHECK_CODES, CODES, NotFound
from stillrun.schema import SCHEMA_VERSION

from ..metrics import CONTENT_TYPE, Metrics
from ..store import Store
from . import http

__all__ = ["blueprint"]

VERSION = "0.1.0"
MAX_FINDINGS = 100  # in the body that a health check reads every few seconds
# A scraper names the version with the type, a browser does not.
TEXT_TYPES = ("text/plain", "text/plain;version=0.0.4", "text/plain;version=0.0.4;charset=utf-8")


def blueprint(store: Store, metrics: Metrics) -> Blueprint:
    """The routes over this store."""
    bp = Blueprint("operations", __name__)

    @bp.get("/")
    def root() -> Response:
        http.params()
        links = {
            "runs": "/runs",
            "waits": "/waits",
            "effects": "/effects?status=in_doubt",
            "stats": "/stats",
            "health": "/healthz",
            "ready": "/readyz",
            "metrics": "/metrics",
            "problems": "/problems/{code}",
        }
        return http.answer(
            {
                "name": "stillrun-store",
                "version": VERSION,
                "api": 1,
                "store_id": store.engine.store_id,
                "schema_version": SCHEMA_VERSION,
                "runs": len(store.entries()),
                "links": links,
            }
        )

    @bp.get("/healthz")
    def healthz() -> Response:
        http.params()
        return http.answer({"ok": True})

    @bp.get("/readyz")
    def readyz() -> Response:
        http.params()
        ready = store.ready and not store.stopping.is_set()
        damaged = {e.run: e.damage.detail for e in store.entries() if e.damage is not None}
        report = store.engine.recovery
        shown: dict[str, Any] = {
            "ready": ready,
            "store_id": store.engine.store_id,
            "schema_version": SCHEMA_VERSION,
            "damaged_runs": damaged,
            "torn_tails_cut": len(report.torn_tails),
            "snapshots_ignored": store.engine.snapshot_fault_count,
            "disk": store.space.figures(),
            "scrub": {
                "passes": store.findings.passes,
                "bytes_read": store.findings.bytes_read,
                "findings": [f.plain() for f in store.findings.all()[:MAX_FINDINGS]],
            },
        }
        return http.answer(shown, 200 if ready else 503)

    @bp.get("/metrics")
    def show_metrics() -> Response:
        http.params()
        http.check_accept(*TEXT_TYPES, structured=False)
        return Response(metrics.text(), content_type=CONTENT_TYPE)

    @bp.get("/problems/<code>")
    def problems(code: str) -> Response:
        http.params()
        kind = CODES.get(code)
        if kind is not None:
            text = " ".join((kind.__doc__ or "").split())
            shown = {"code": code, "title": kind.title, "status": kind.status, "meaning": text}
        elif code in CHECK_CODES:
            shown = {"code": code, "title": "Not allowed in this state", "status": 409}
            shown["meaning"] = CHECK_CODES[code]
        else:
            raise NotFound(f"no problem {code!r:.60}")
        return http.answer(shown)

    return bp
