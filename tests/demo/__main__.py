"""`python -m demo`: start concierge, let it die in the middle of its booking, count the bookings.

Exit code 0 only if every claim of `proof` holds.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from typing import Any

import requests

from world.naive import run_naively

from .proof import claims
from .services import GaveUp, Services, until

APPROVE_AFTER_S = 2.0  # so that a reader sees the run wait, parked, holding no thread
HOLD_S = 60
ENDS_WITHIN_S = 180.0  # without a person
ENDS_WITHIN_DAY_S = 86_400.0  # with one
TRIP = {"route": "LIS-OSL", "budget": 400}
SEED = 7


def main() -> int:
    options = _options()
    services = Services(
        store=os.environ.get("STORE_URL", "http://127.0.0.1:8100"),
        agent=os.environ.get("AGENT_URL", "http://127.0.0.1:8101"),
        world=os.environ.get("WORLD_URL", "http://127.0.0.1:8102"),
    )
    try:
        return Demo(services, options).play()
    except (GaveUp, requests.RequestException) as error:
        print(f"The demo gave up: {error}", file=sys.stderr)
        return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--ask", action="store_true", help="leave the approval to you and curl")
    parser.add_argument("--quiet", action="store_true", help="print the summary only")
    parser.add_argument(
        "--hold", action="store_true", help="the desk holds its reply: kill the agent by hand"
    )
    return parser.parse_args()


class Demo:
    """One showing of the demo."""

    def __init__(self, services: Services, options: argparse.Namespace) -> None:
        self._services = services
        self._options = options
        self._error: Exception | None = None
        by_hand = options.ask or options.hold
        self._ends_within_s = ENDS_WITHIN_DAY_S if by_hand else ENDS_WITHIN_S

    def play(self) -> int:
        services = self._services
        services.wait_until_ready()
        run = services.free_name("trip")
        self._arm(run)
        body = {"run": run, "input": TRIP, "seed": SEED}
        services.post(f"{services.agent}/agents/concierge/runs", body)
        self._say(f"run {run}   agent concierge   offline model, seed {SEED}")
        threading.Thread(target=self._answer, args=(run,), daemon=True).start()
        for line in services.log_lines(run, self._ends_within_s, lambda: self._error):
            if " in doubt " in line and self._booked(run):
                # Nobody could say so earlier: the store learns of a death when the lease ends.
                self._say("             ---- the agent was killed: the desk had booked, and")
                self._say("             ---- its answer was not written; another one goes on ----")
            self._say(line)
        return self._sum_up(run)

    def _arm(self, run: str) -> None:
        """Once for this run the desk's reply asks the tool to die, or it is held for a person."""
        if self._options.hold:
            fault: dict[str, Any] = {"do": "delay", "delay_s": HOLD_S, "after": True}
        else:
            fault = {"do": "crash"}
        script = {"faults": [{"kind": "booking", "attempt": 1, **fault}]}
        self._services.put(f"{self._services.world}/script/{run}", script)

    def _answer(self, run: str) -> None:
        """Be the person; what goes wrong is for the main thread."""
        try:
            self._be_a_person(run)
        except (GaveUp, requests.RequestException) as error:
            self._error = error

    def _be_a_person(self, run: str) -> None:
        """Approve, or say how; with --hold say when to kill."""
        services = self._services
        until(lambda: self._asked(run), self._ends_within_s, "the approval")
        if self._options.ask:
            self._say(
                "             ---- the run waits for you:\n"
                f'             curl localhost:8100/runs/{run}/approve -d \'{{"by":"you"}}\''
            )
        else:
            time.sleep(APPROVE_AFTER_S)
            services.post(f"{services.store}/runs/{run}/approve", {"by": "demo"})
        if self._options.hold:
            until(lambda: self._booked(run), self._ends_within_s, "the booking")
            self._say(
                f"             ---- the desk has booked and holds its reply for {HOLD_S} s; now:\n"
                "             docker compose kill agent && docker compose up -d"
            )

    def _asked(self, run: str) -> bool:
        try:
            return bool(self._services.open_approvals(run))
        except requests.RequestException:
            return False

    def _booked(self, run: str) -> bool:
        try:
            return bool(self._services.ledger(run)["counts"]["bookings"])
        except requests.RequestException:
            return False

    def _say(self, line: str) -> None:
        if not self._options.quiet:
            print(line, flush=True)

    def _sum_up(self, run: str) -> int:
        services = self._services
        naive = f"{run}-naive"
        bookings = None if self._options.hold else run_naively(services.world, naive)
        events, ledger = services.events(run), services.ledger(run)
        self._print_ledger("The world's ledger with Stillrun", ledger)
        if not self._options.hold:
            self._print_ledger("Same script, same crash, no durable state", services.ledger(naive))
        results = list(claims(events, ledger, bookings))
        print()
        for holds, sentence in results:
            print(f"  {'ok ' if holds else 'NOT'} {sentence}")
        print(f"\nThe services stay up. Look around: curl localhost:8100/runs/{run}")
        return 0 if all(holds for holds, _ in results) else 1

    @staticmethod
    def _print_ledger(title: str, ledger: dict[str, Any]) -> None:
        print(f"\n{title}:")
        for entry in ledger["applied"]:
            what = entry["answer"].get(entry["kind"], "")
            print(f"  {entry['kind']:<8} {what:<5} key {entry['key']}")


if __name__ == "__main__":
    raise SystemExit(main())
