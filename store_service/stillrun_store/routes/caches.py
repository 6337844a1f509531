"""A run's caches: its snapshots and its storage model; and what all of them cost."""

from __future__ import annotations

from flask import Blueprint, Response

from stillrun.wire import ChangeStorage, Nothing

from .. import caches
from ..costs import snapshots_view, stats
from ..store import Store
from . import http
from .runs import only_run

__all__ = ["blueprint"]


def blueprint(store: Store) -> Blueprint:
    """The routes over this store."""
    bp = Blueprint("caches", __name__)

    @bp.get("/stats")
    def whole_store() -> Response:
        http.params()
        return http.answer(stats(store))

    @bp.get("/runs/<ref>/snapshots")
    def snapshots(ref: str) -> Response:
        http.params()
        found = snapshots_view(store, store.entry(only_run(ref)))
        return http.answer({"snapshots": found, "next": None})

    @bp.post("/runs/<ref>/snapshots")
    def take(ref: str) -> Response:
        http.params()
        http.body(Nothing)
        return http.answer(caches.take_snapshot(store, only_run(ref)), 201)

    @bp.delete("/runs/<ref>/snapshots")
    def drop(ref: str) -> Response:
        given = http.params("seq")
        http.body(Nothing)
        seq = http.whole_param(given, "seq", 1, 1, 1 << 53) if "seq" in given else None
        left = caches.drop_snapshots(store, only_run(ref), seq)
        return http.answer({"snapshots": left, "next": None})

    @bp.put("/runs/<ref>/storage")
    def storage(ref: str) -> Response:
        http.params()
        changed, new = caches.change_storage(store, only_run(ref), http.body(ChangeStorage))
        return http.answer(changed, 201 if new else 200)

    return bp
