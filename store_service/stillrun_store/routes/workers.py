"""Workers' side: claims, leases, blobs."""

from __future__ import annotations

import re

from flask import Blueprint, Response

from stillrun.errors import BlobNotFound, InvalidParameter
from stillrun.wire import ClaimRuns, ReleaseLease, RenewLeases

from .. import leases
from ..store import Store
from . import http
from .limits import Waiting
from .runs import only_run

__all__ = ["blueprint"]

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def blueprint(store: Store, waiting: Waiting) -> Blueprint:
    """The routes over this store."""
    bp = Blueprint("workers", __name__)

    @bp.post("/claims")
    def claims() -> Response:
        http.params()
        body = http.body(ClaimRuns)
        if body.timeout_s > 0:
            with waiting.place():
                grants = leases.claim(store, body)
        else:
            grants = leases.claim(store, body)
        return http.answer({"grants": grants})

    @bp.post("/leases")
    def renewals() -> Response:
        http.params()
        return http.answer({"leases": leases.renew(store, http.body(RenewLeases))})

    @bp.delete("/runs/<ref>/lease")
    def release(ref: str) -> Response:
        http.params()
        run = only_run(ref)
        head_seq = leases.release(store, run, http.body(ReleaseLease))
        return http.answer({"run": run, "head_seq": head_seq})

    @bp.put("/blobs/<sha256>")
    def put_blob(sha256: str) -> Response:
        http.params()
        new = store.put_blob(_digest(sha256), http.raw_body())
        return http.answer({"sha256": sha256}, 201 if new else 200)

    @bp.get("/blobs/<sha256>")
    def get_blob(sha256: str) -> Response:
        http.check_accept("application/octet-stream")
        http.params()
        data = store.get_blob(_digest(sha256))
        if data is None:
            raise BlobNotFound(f"no blob {sha256}")
        return Response(data, mimetype="application/octet-stream")

    return bp


def _digest(sha256: str) -> str:
    if not _SHA256.match(sha256):
        raise InvalidParameter("sha256", "64 lowercase hex digits")
    return sha256
