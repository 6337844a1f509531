"""Scripted people: they approve by wait, and settle doubts as the world's ledger has it.

Always: the id of an answer is a function of run and wait, so a lost reply is asked for again and
nothing is answered twice.
"""

from __future__ import annotations

import threading
import uuid
from typing import Any, Self

import requests

__all__ = ["People"]

POLL_S = 2.0
TIMEOUT_S = 10.0


class People:
    """``with People(run, store=…, world=…):`` someone looks after the run.

    `door`: where answers go, the store by another way. `error` is what they could not deal with.
    """

    def __init__(self, run: str, *, store: str, world: str, door: str | None = None) -> None:
        self._run, self._store, self._world = run, store, world
        self._door = door or store
        self._over = threading.Event()
        self.error: Exception | None = None
        self.settled = 0
        self._thread = threading.Thread(target=self._look_after, name=f"people of {run}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(POLL_S + 2 * TIMEOUT_S)

    def _look_after(self) -> None:
        while not self._over.is_set():
            try:
                run = _get(f"{self._store}/runs/{self._run}")
                self._answer()
                if run["status"] == "in_doubt":
                    self._settle()
                head = run["head_seq"]
                query = f"from={head + 1}&limit=1&timeout_s={POLL_S}"
                _get(f"{self._store}/runs/{self._run}/events?{query}")
            except requests.RequestException:
                self._over.wait(0.05)  # it was killed: nobody knows when it is back
            except Exception as error:
                self.error = error
                return

    def _answer(self) -> None:
        waits = _get(f"{self._store}/runs/{self._run}/waits?kind=approval&status=open")["waits"]
        for wait in waits:
            body = {"answer": "approve", "by": "ann", "id": self._id(wait["wait"])}
            path = f"/runs/{self._run}/waits/{wait['wait']}/answer"
            _expect(requests.post(self._door + path, json=body, timeout=TIMEOUT_S), 200, 201, 409)

    def _settle(self) -> None:
        """Tell the truth: happened if the ledger has the key; while it may yet, wait."""
        ledger = _get(f"{self._world}/ledger?run={self._run}")
        done = {entry["key"]: entry["answer"] for entry in ledger["applied"]}
        underway = {r["key"] for r in ledger["requests"] if r["outcome"] == "waiting"}
        effects = _get(f"{self._store}/runs/{self._run}/effects?status=in_doubt")["effects"]
        for effect in effects:
            key = effect["key"]
            if key in underway:
                continue
            body: dict[str, Any] = {"by": "ann", "id": self._id(f"{effect['effect']}@{key}")}
            if key in done:
                body |= {"outcome": "happened", "result": done[key]}
            else:
                body |= {"outcome": "did_not_happen"}
            path = f"/runs/{self._run}/effects/{effect['effect']}/settle"
            answer = requests.post(self._door + path, json=body, timeout=TIMEOUT_S)
            _expect(answer, 200, 201, 409)
            self.settled += answer.ok

    def _id(self, what: str) -> str:
        return uuid.uuid5(uuid.NAMESPACE_URL, f"{self._run}/{what}").hex


def _get(url: str) -> Any:
    answer = requests.get(url, timeout=TIMEOUT_S)
    answer.raise_for_status()
    return answer.json()


def _expect(answer: requests.Response, *codes: int) -> None:
    if answer.status_code >= 500:
        answer.raise_for_status()  # going down, or recovering: ask again
    assert answer.status_code in codes, f"{answer.url}: {answer.status_code} {answer.text}"
