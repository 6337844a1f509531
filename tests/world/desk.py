"""The desk: what happens to one write, from its receipt to its reply.

Always: a known key is never applied again; `not_done` is said only when it is true, and a lookup
says "no such key" only when no request with the key was or will be applied."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .bodies import same
from .errors import InProgress, KeyReused, NotDone, NotThere, Refused, Unavailable
from .gates import Gates
from .ledger import Applied, Ledger, Request
from .script import Fault, Turn

__all__ = ["Desk", "Reply"]

LETTERS = {"hold": "H", "booking": "B", "mail": "M"}
ANSWERED_FIELDS = ("route", "carrier", "seat", "price")  # never the run: a twin has another


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """``lost``: the caller must not get it."""

    answer: dict[str, Any] | None = None
    refused: Refused | None = None
    replayed: bool = False
    lost: bool = False


class Desk:
    """Holds, bookings and mails, with the faults that the run's script asks for."""

    def __init__(self, ledger: Ledger, gates: Gates) -> None:
        self._ledger = ledger
        self._gates = gates

    def write(self, kind: str, key: str | None, body: dict[str, Any]) -> Reply:
        run = body["run"]
        with self._ledger.lock:
            turn = self._ledger.turn(kind, run, key)
            faults = self._faults(turn, run)
            held = any(fault.holds for fault in faults)
            if held:
                self._gates.take_thread()
            request = self._ledger.receive(turn, run, key, body, [fault.do for fault in faults])
        try:
            self._hold(fault for fault in faults if not fault.after)
            with self._ledger.lock:
                reply = self._decide(request, run)
            self._hold(fault for fault in faults if fault.after)
        finally:
            if held:
                self._gates.give_thread()
        return reply

    def look_up(self, kind: str, key: str) -> dict[str, Any]:
        """The answer as given first, or ``NotThere``, which is final, or ``InProgress``."""
        with self._ledger.lock:
            found = self._ledger.look_up(kind, key)
        if isinstance(found, Applied):
            return found.answer
        if found == "lookup_in_progress":
            raise InProgress(f"a {kind} with this key was received and is not done yet; ask again")
        raise NotThere(f"no {kind} was made with this key", code="no_such_key")

    def _hold(self, faults: Iterable[Fault]) -> None:
        for fault in faults:
            if fault.do == "delay":
                time.sleep(fault.delay_s)
            elif fault.do == "gate":
                self._gates.pass_through(fault.gate)

    def _faults(self, turn: Turn, run: str) -> list[Fault]:
        met = [fault for fault in self._ledger.script(run) if fault.meets(turn)]
        came = self._ledger.crash_came(turn.kind, run)
        return [fault for fault in met if not (fault.do == "crash" and came)]

    def _decide(self, request: Request, run: str) -> Reply:
        lost = "lose_reply" in request.faults
        known = self._ledger.applied(request.kind, request.key)
        if "fail" in request.faults:
            return Reply(refused=self._fail(request, known), lost=lost)
        if known is None:
            crash = (
                "crash" in request.faults
                and not lost
                and not self._ledger.crash_came(request.kind, run)
            )
            answer = self._answer(request, run)
            self._ledger.settle(request, "applied", answer=answer, crash=crash)
            return Reply(answer=answer | {"crash": True} if crash else answer, lost=lost)
        if same(known.body, request.body):
            self._ledger.settle(request, "replayed")
            return Reply(answer=known.answer, replayed=True, lost=lost)
        self._ledger.settle(request, "key_reused")
        return Reply(refused=KeyReused("this key came first with another body"), lost=lost)

    def _fail(self, request: Request, known: Applied | None) -> Refused:
        self._ledger.settle(request, "failed")
        if known or self._ledger.may_yet_apply(request.kind, request.key, but=request):
            # "Not done" would be a lie about the key: its first request was or will be applied.
            return Unavailable("the desk is closed for a moment; an earlier request had this key")
        return NotDone("the desk is closed for a moment; nothing was done")

    def _answer(self, request: Request, run: str) -> dict[str, Any]:
        number = self._ledger.next_number(request.kind, run)
        answer: dict[str, Any] = {request.kind: f"{LETTERS[request.kind]}-{number}"}
        return answer | {f: request.body[f] for f in ANSWERED_FIELDS if f in request.body}
