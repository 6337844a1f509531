"""All that the world remembers: requests, what was applied, scripts and changed fares.

Always: state = fold(lines); a line is in the journal before it is in memory. The caller holds
``lock`` around every method, so that a decision and its line are one step."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .journal import Journal, Line
from .script import KINDS, Fault, Turn, parse_faults, wire_faults

__all__ = ["Applied", "Ledger", "Request"]


@dataclass(slots=True, kw_only=True)
class Request:
    """A write that came in, or a lookup by key.

    ``outcome`` is one of waiting, applied, replayed, failed, key_reused, cut_off (the world died
    before it applied it), lookup_found, lookup_missing, lookup_in_progress."""

    n: int
    at: float
    run: str | None
    kind: str
    key: str | None
    outcome: str
    attempt: int | None = None
    faults: list[str] = field(default_factory=list)
    body: dict[str, Any] = field(default_factory=dict)

    def view(self) -> dict[str, Any]:
        shown = {"n": self.n, "at": self.at, "run": self.run, "kind": self.kind, "key": self.key}
        if self.attempt is not None:
            shown |= {"attempt": self.attempt}
        return shown | {"outcome": self.outcome, "faults": self.faults}


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A write that was done; ``n`` counts from 1 per run and kind."""

    run: str
    kind: str
    key: str | None
    body: dict[str, Any]
    answer: dict[str, Any]
    n: int

    def view(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "kind": self.kind,
            "key": self.key,
            "body": self.body,
            "answer": self.answer,
            "n": self.n,
        }


class Ledger:
    """The fold of the journal. ``clock`` is for display only."""

    def __init__(self, journal: Journal, clock: Callable[[], float]) -> None:
        self.lock = threading.RLock()
        self._journal = journal
        self._clock = clock
        self._requests: list[Request] = []
        self._applied: list[Applied] = []
        self._by_key: dict[tuple[str, str], Applied] = {}
        self._key_counts: dict[tuple[str, str], dict[str, int]] = {}  # (run, kind) -> key -> times
        self._numbers: Counter[tuple[str, str]] = Counter()  # applied, per run and kind
        self._crashed: set[tuple[str, str]] = set()
        self._scripts: dict[str, tuple[Fault, ...]] = {}
        self._fares: dict[tuple[str, str], int | float | None] = {}
        for line in journal.found:
            self._fold(line)
        for request in self._requests:
            if request.outcome == "waiting":
                self.settle(request, "cut_off")

    # -- writes ------------------------------------------------------------------------------

    def turn(self, kind: str, run: str, key: str | None) -> Turn:
        """The turn that the next request with this key will have."""
        counts = self._key_counts.get((run, kind), {})
        seen = list(counts)
        return Turn(
            kind=kind,
            attempt=sum(counts.values()) + 1,
            nth_key=seen.index(key) + 1 if key in counts else len(seen) + 1,
            key_attempt=counts.get(key, 0) + 1 if key is not None else 1,
        )

    def receive(
        self, turn: Turn, run: str, key: str | None, body: dict[str, Any], faults: list[str]
    ) -> Request:
        n = len(self._requests) + 1
        self._record(
            {
                "line": "received",
                "n": n,
                "at": self._clock(),
                "run": run,
                "kind": turn.kind,
                "key": key,
                "attempt": turn.attempt,
                "faults": faults,
                "body": body,
            }
        )
        return self._requests[n - 1]

    def settle(
        self,
        request: Request,
        outcome: str,
        *,
        answer: dict[str, Any] | None = None,
        crash: bool = False,
    ) -> None:
        """States what became of a request; ``answer`` goes with outcome ``applied``."""
        line: Line = {"line": "settled", "n": request.n, "outcome": outcome}
        if answer is not None:
            line["answer"] = answer
        if crash:
            line["crash"] = True
        self._record(line)

    def next_number(self, kind: str, run: str) -> int:
        return self._numbers[run, kind] + 1

    def applied(self, kind: str, key: str | None) -> Applied | None:
        return None if key is None else self._by_key.get((kind, key))

    def may_yet_apply(self, kind: str, key: str | None, *, but: Request | None = None) -> bool:
        """Whether a request with this key is being held and will be applied afterwards."""
        return key is not None and any(
            request.outcome == "waiting"
            and (request.kind, request.key) == (kind, key)
            and "fail" not in request.faults
            for request in self._requests
            if request is not but
        )

    def crash_came(self, kind: str, run: str) -> bool:
        return (run, kind) in self._crashed

    # -- lookups, scripts, fares ---------------------------------------------------------------

    def look_up(self, kind: str, key: str) -> Applied | str:
        """What was applied with the key, else the outcome of the lookup; recorded either way."""
        found = self.applied(kind, key)
        if found is not None:
            outcome = "lookup_found"
        elif self.may_yet_apply(kind, key):
            outcome = "lookup_in_progress"
        else:
            outcome = "lookup_missing"
        run = next((r.run for r in self._requests if (r.kind, r.key) == (kind, key)), None)
        self._record(
            {
                "line": "looked_up",
                "at": self._clock(),
                "run": run,
                "kind": kind,
                "key": key,
                "outcome": outcome,
            }
        )
        return found or outcome

    def script(self, run: str) -> tuple[Fault, ...]:
        return self._scripts.get(run, ())

    def set_script(self, run: str, faults: tuple[Fault, ...]) -> None:
        self._record({"line": "script_set", "run": run, "faults": wire_faults(faults)})

    def fare(self, route: str, carrier: str, default: int | None) -> int | float | None:
        """The fare as last set by script, else ``default``; None when there is none."""
        return self._fares.get((route, carrier), default)

    def set_fare(self, route: str, carrier: str, price: int | float | None) -> None:
        self._record({"line": "fare_set", "route": route, "carrier": carrier, "price": price})

    # -- the view ------------------------------------------------------------------------------

    def view(self, run: str | None) -> dict[str, Any]:
        """Everything, or what concerns one run. A lookup of a key nobody used belongs to no run,
        unless the key has the shape of Stillrun's keys, which begin with the run."""
        applied = [done for done in self._applied if run in (None, done.run)]
        requests = [r for r in self._requests if run is None or _concerns(r, run)]
        outcomes = [request.outcome for request in requests]
        kinds = [done.kind for done in applied]
        counts = {f"{kind}s": kinds.count(kind) for kind in ("booking", "hold", "mail")}
        counts |= {
            "repeats": outcomes.count("replayed"),
            "key_reused": outcomes.count("key_reused"),
            "failed": outcomes.count("failed"),
        }
        return {
            "applied": [done.view() for done in applied],
            "requests": [request.view() for request in requests],
            "counts": counts,
        }

    # -- the fold ------------------------------------------------------------------------------

    def _record(self, line: Line) -> None:
        self._journal.append(line)
        self._fold(line)

    def _fold(self, line: Line) -> None:
        line = dict(line)
        match line.pop("line"):
            case "received":
                self._requests.append(Request(**line, outcome="waiting"))
                counts = self._key_counts.setdefault((line["run"], line["kind"]), {})
                # A request without a key is a key of its own; no key may look like that.
                key = line["key"] if line["key"] is not None else f"\n{line['n']}"
                counts[key] = counts.get(key, 0) + 1
            case "settled":
                self._fold_settled(self._requests[line["n"] - 1], line)
            case "looked_up":
                self._requests.append(Request(n=len(self._requests) + 1, **line))
            case "script_set":
                self._scripts[line["run"]] = parse_faults({"faults": line["faults"]})
            case "fare_set":
                self._fares[line["route"], line["carrier"]] = line["price"]
            case unknown:
                raise ValueError(f"the ledger has a line of unknown kind {unknown!r}")

    def _fold_settled(self, request: Request, line: Line) -> None:
        request.outcome = line["outcome"]
        if request.outcome != "applied" or request.run is None:
            return
        done = Applied(
            run=request.run,
            kind=request.kind,
            key=request.key,
            body=request.body,
            answer=line["answer"],
            n=self.next_number(request.kind, request.run),
        )
        self._applied.append(done)
        self._numbers[request.run, request.kind] = done.n
        if request.key is not None:
            self._by_key[request.kind, request.key] = done
        if line.get("crash"):
            self._crashed.add((request.run, request.kind))


def _concerns(request: Request, run: str) -> bool:
    if request.run is None:
        parts = (request.key or "").rsplit(".", 3)  # <run>.<log_id>.<ordinal>.<digest>
        return len(parts) == 4 and parts[0] == run
    return request.run == run


assert set(KINDS) == {"booking", "hold", "mail"}  # the counts in the view name them
