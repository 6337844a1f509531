"""The world over HTTP: parse, call, render."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from . import offers
from .bodies import (
    MAILS_FIELDS,
    MAX_BODY_BYTES,
    SEAT_FIELDS,
    Check,
    boolean,
    check_fields,
    check_key,
    check_name,
    name,
    parse_object,
    price,
    price_or_none,
    run_id,
)
from .desk import Desk, Reply
from .errors import InvalidParameter, NotThere, Refused
from .gates import MAX_POLL_S, Gates
from .journal import Journal
from .ledger import Ledger
from .script import parse_faults, wire_faults

__all__ = ["ReplyLost", "create_app"]


class ReplyLost(Exception):
    """Raised inside the answer, by script: the server drops the connection."""


def create_app(ledger_path: Path | None = None, clock: Callable[[], float] = time.time) -> Flask:
    """The world; with ``ledger_path`` it remembers across restarts. ``clock`` stamps the ledger."""
    app = Flask("world")
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.url_map.merge_slashes = False
    ledger = Ledger(Journal(ledger_path), clock)
    gates = Gates()
    _add_errors(app)
    _add_offers(app, ledger)
    _add_desk(app, Desk(ledger, gates))
    _add_stage(app, ledger, gates)
    return app


def _add_errors(app: Flask) -> None:
    @app.errorhandler(Refused)
    def refused(error: Refused) -> Response:
        return _refusal(error)

    @app.errorhandler(HTTPException)
    def not_served(error: HTTPException) -> Response:
        code = (error.name or "error").lower().replace(" ", "_")
        return _json({"code": code, "detail": error.description}, status=error.code or 400)


def _add_offers(app: Flask, ledger: Ledger) -> None:
    @app.get("/healthz")
    @app.get("/readyz")  # it answers once the ledger is read
    def healthz() -> Response:
        return _json({"ok": True})

    @app.get("/routes/<route>")
    def show_route(route: str) -> Response:
        _query()
        return _json({"route": check_name(route, "route"), "carriers": offers.carriers(route)})

    @app.get("/fares/<route>")
    def show_fare(route: str) -> Response:
        carrier = _carrier(route)
        flies = carrier in offers.carriers(route)
        with ledger.lock:
            found = ledger.fare(route, carrier, offers.fare(route, carrier) if flies else None)
        if found is None:
            raise NotThere(f"{carrier} has no fare for {route}", code="no_such_fare")
        return _json({"route": route, "carrier": carrier, "price": found})

    @app.put("/fares/<route>")
    def set_fare(route: str) -> Response:
        check_name(route, "route")
        body = _body({"carrier": name, "price": price_or_none})
        with ledger.lock:
            ledger.set_fare(route, body["carrier"], body["price"])
        return _json({"route": route, **body})

    @app.get("/seats/<route>")
    def show_seats(route: str) -> Response:
        return _json({"seats": offers.seats(route, _carrier(route))})


def _add_desk(app: Flask, desk: Desk) -> None:
    kinds = {
        "holds": ("hold", SEAT_FIELDS),
        "bookings": ("booking", {**SEAT_FIELDS, "price": price}),
        "mails": ("mail", MAILS_FIELDS),
    }

    @app.post("/<any(holds, bookings, mails):place>")
    def write(place: str) -> Response:
        kind, fields = kinds[place]
        given = request.headers.get("Idempotency-Key")
        key = None if given is None else check_key(given)
        return _reply(desk.write(kind, key, _body(fields)))

    @app.get("/<any(holds, bookings, mails):place>/by-key/<key>")
    def look_up(place: str, key: str) -> Response:
        _query()
        return _json(desk.look_up(kinds[place][0], check_key(key)))


def _add_stage(app: Flask, ledger: Ledger, gates: Gates) -> None:
    @app.put("/script/<run>")
    def set_script(run: str) -> Response:
        _run(run)
        faults = parse_faults(_object())
        with ledger.lock:
            ledger.set_script(run, faults)
        return _json({"run": run, "faults": wire_faults(faults)})

    @app.get("/script/<run>")
    def show_script(run: str) -> Response:
        _query()
        with ledger.lock:
            faults = ledger.script(_run(run))
        return _json({"run": run, "faults": wire_faults(faults)})

    @app.put("/gates/<gate>")
    def set_gate(gate: str) -> Response:
        view = gates.set(check_name(gate, "gate"), open=_body({"open": boolean})["open"])
        return _json({"open": view.open, "waiting": view.waiting})

    @app.get("/gates/<gate>")
    def show_gate(gate: str) -> Response:
        check_name(gate, "gate")
        query = _query("waiting", "timeout_s")
        if "waiting" in query:
            view = gates.wait_for_waiting(
                gate,
                waiting=int(_number(query["waiting"], "waiting", most=1_000)),
                timeout_s=_number(query.get("timeout_s", "10"), "timeout_s", most=MAX_POLL_S),
            )
        else:
            view = gates.view(gate)
        return _json({"open": view.open, "waiting": view.waiting})

    @app.get("/ledger")
    def show_ledger() -> Response:
        run = _query("run").get("run")
        with ledger.lock:
            return _json(ledger.view(None if run is None else _run(run)))


# -- parse -----------------------------------------------------------------------------------


def _query(*allowed: str) -> dict[str, str]:
    """The query's parameters; an unknown or repeated one is refused, never ignored."""
    for parameter, values in request.args.lists():
        if parameter not in allowed or len(values) > 1:
            raise InvalidParameter(f"parameter {parameter!r} is unknown here or given twice")
    return request.args.to_dict()


def _object() -> dict[str, Any]:
    _query()
    return parse_object(request.get_data())


def _body(fields: Mapping[str, Check]) -> dict[str, Any]:
    return check_fields(_object(), fields)


def _carrier(route: str) -> str:
    check_name(route, "route")
    carrier = _query("carrier").get("carrier")
    if carrier is None:
        raise InvalidParameter("parameter 'carrier' is missing")
    return check_name(carrier, "carrier")


def _run(value: str) -> str:
    try:
        return run_id(value)
    except ValueError as error:
        raise InvalidParameter(f"run {error}") from None


def _number(value: str, parameter: str, *, most: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= most:
        raise InvalidParameter(f"{parameter} must be a number between 0 and {most:g}")
    return number


# -- render ----------------------------------------------------------------------------------


def _json(shown: Mapping[str, Any], *, status: int = 200) -> Response:
    text = json.dumps(shown, indent=2, ensure_ascii=False) + "\n"
    return Response(text, status=status, mimetype="application/json")


def _refusal(error: Refused) -> Response:
    return _json({"code": error.code, "detail": error.detail}, status=error.status)


def _reply(reply: Reply) -> Response:
    if reply.lost:
        # The status line is out before the body breaks off: it must not tell what happened.
        # The lazy map raises while the body is sent, which is what drops the connection.
        return Response(map(_break_off, [b""]), status=502, mimetype="application/json")
    if reply.refused is not None:
        return _refusal(reply.refused)
    response = _json(reply.answer or {}, status=201)
    if reply.replayed:
        response.headers["Idempotent-Replayed"] = "true"
    return response


def _break_off(_: bytes) -> bytes:
    raise ReplyLost("the script asked for it")
