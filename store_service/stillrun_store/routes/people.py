"""People's side: messages, signals, waits and their answers, cancel, pause, effects, settling."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response

from stillrun.errors import InvalidParameter
from stillrun.wire import (
    MAX_WAIT_S,
    AnswerWait,
    Appended,
    By,
    SendMessage,
    SendSignal,
    SettleEffect,
    Unpause,
    Verdict,
)

from .. import ledger, people
from ..store import Store
from . import http
from .limits import Waiting
from .runs import only_run

__all__ = ["blueprint"]

RECHECK_S = 1.0  # a wait that opens between the look and the sleep is seen by then


def blueprint(store: Store, waiting: Waiting) -> Blueprint:
    """The routes over this store."""
    bp = Blueprint("people", __name__)

    def done(result: tuple[Appended, bool]) -> Response:
        appended, new = result
        return http.answer(appended, 201 if new else 200)

    @bp.post("/runs/<ref>/messages")
    def messages(ref: str) -> Response:
        http.params()
        return done(people.send_message(store, only_run(ref), http.body(SendMessage)))

    @bp.post("/runs/<ref>/signals/<name>")
    def signals(ref: str, name: str) -> Response:
        http.params()
        return done(people.send_signal(store, only_run(ref), name, http.body(SendSignal)))

    @bp.post("/runs/<ref>/cancel")
    def cancel(ref: str) -> Response:
        http.params()
        return done(people.cancel(store, only_run(ref), http.body(By)))

    @bp.post("/runs/<ref>/pause")
    def pause(ref: str) -> Response:
        http.params()
        return done(people.pause(store, only_run(ref), http.body(By)))

    @bp.post("/runs/<ref>/unpause")
    def unpause(ref: str) -> Response:
        http.params()
        return done(people.unpause(store, only_run(ref), http.body(Unpause)))

    @bp.post("/runs/<ref>/approve")
    def approve(ref: str) -> Response:
        http.params()
        verdict = http.body(Verdict)
        return done(people.answer_only_approval(store, only_run(ref), "approve", verdict))

    @bp.post("/runs/<ref>/reject")
    def reject(ref: str) -> Response:
        http.params()
        verdict = http.body(Verdict)
        return done(people.answer_only_approval(store, only_run(ref), "reject", verdict))

    @bp.post("/runs/<ref>/waits/<wait>/answer")
    def answer_wait(ref: str, wait: str) -> Response:
        http.params()
        return done(people.answer(store, only_run(ref), wait, http.body(AnswerWait)))

    @bp.get("/runs/<ref>/waits")
    def run_waits(ref: str) -> Response:
        given = http.params("kind", "status")
        found = ledger.waits_of(store, store.entry(only_run(ref)))
        return http.answer({"waits": _filtered(given, found), "next": None})

    @bp.get("/waits")
    def waits() -> Response:
        given = http.params("kind", "status", "timeout_s")
        if given.get("status", "open") != "open":
            raise InvalidParameter("status", "across runs only open waits are listed")
        http.one_of(given, "kind", ledger.WAIT_KINDS)
        timeout_s = http.seconds_param(given, "timeout_s", MAX_WAIT_S)
        found = _filtered(given, ledger.open_waits(store))
        ends = store.monotonic() + timeout_s
        if not found and timeout_s > 0:
            with waiting.place():
                while not found and not store.stopping.is_set():
                    left = ends - store.monotonic()
                    if left <= 0:
                        break
                    store.board.wait_for_waits(min(left, RECHECK_S))
                    found = _filtered(given, ledger.open_waits(store))
        return http.answer({"waits": found, "next": None})

    @bp.get("/runs/<ref>/effects")
    def run_effects(ref: str) -> Response:
        given = http.params("status")
        word = http.one_of(given, "status", ledger.EFFECT_STATUSES)
        found = ledger.effects_of(store, store.entry(only_run(ref)))
        shown = [effect for effect in found if word is None or effect["status"] == word]
        return http.answer({"effects": shown, "next": None})

    @bp.get("/effects")
    def effects() -> Response:
        given = http.params("status")
        word = http.one_of(given, "status", ledger.LIVE_STATUSES) or "in_doubt"
        return http.answer({"effects": ledger.live_effects(store, word), "next": None})

    @bp.post("/runs/<ref>/effects/<effect>/settle")
    def settle(ref: str, effect: str) -> Response:
        http.params()
        return done(people.settle(store, only_run(ref), effect, http.body(SettleEffect)))

    return bp


def _filtered(given: Any, waits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kind = http.one_of(given, "kind", ledger.WAIT_KINDS)
    word = http.one_of(given, "status", ledger.WAIT_STATUSES)
    return [
        wait
        for wait in waits
        if (kind is None or wait["kind"] == kind) and (word is None or wait["status"] == word)
    ]
