"""The three services as the demo sees them: plain HTTP, what a person would type with curl."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import requests

__all__ = ["GaveUp", "Services"]

TIMEOUT_S = 10.0
READY_WITHIN_S = 120.0
STREAM_QUIET_S = 5.0  # then look at the run again: it may be parked where only a person helps


class GaveUp(Exception):
    """Something that must come did not come; the text says what."""


@dataclass(frozen=True)
class Services:
    """Base URLs of store, agent and world."""

    store: str
    agent: str
    world: str

    def wait_until_ready(self) -> None:
        """Return when all three answer /readyz with 200."""
        for url in (self.store, self.agent, self.world):
            until(lambda url=url: self._answers(f"{url}/readyz"), READY_WITHIN_S, f"{url} ready")

    @staticmethod
    def _answers(url: str) -> bool:
        try:
            return requests.get(url, timeout=2).status_code == 200
        except requests.RequestException:
            return False

    def get(self, url: str, **kwargs: Any) -> Any:
        response = requests.get(url, timeout=TIMEOUT_S, **kwargs)
        response.raise_for_status()
        return response.json()

    def put(self, url: str, body: Any) -> Any:
        response = requests.put(url, json=body, timeout=TIMEOUT_S)
        response.raise_for_status()
        return response.json()

    def post(self, url: str, body: Any) -> Any:
        response = requests.post(url, json=body, timeout=TIMEOUT_S)
        response.raise_for_status()
        return response.json()

    def free_name(self, stem: str) -> str:
        """The first of stem-1, stem-2, ... that no run has."""
        number = 1
        while True:
            answer = requests.get(f"{self.store}/runs/{stem}-{number}", timeout=TIMEOUT_S)
            if answer.status_code == 404:
                return f"{stem}-{number}"
            if answer.status_code not in (200, 410):
                answer.raise_for_status()
            number += 1

    def run(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"{self.store}/runs/{run}")
        return found

    def events(self, run: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        path: str | None = f"/runs/{run}/events?limit=1000"
        while path:
            page = self.get(self.store + path)
            found += page["events"]
            path = page["next"]
        return found

    def open_approvals(self, run: str) -> list[dict[str, Any]]:
        path = f"/runs/{run}/waits?kind=approval&status=open"
        waits: list[dict[str, Any]] = self.get(self.store + path)["waits"]
        return waits

    def log_lines(
        self, run: str, within_s: float, failed: Callable[[], Exception | None]
    ) -> Iterator[str]:
        """The run's log as it grows, until the run closes; a broken stream is taken up again.

        Raises GaveUp when that takes longer than `within_s`, when a person would have to help, or
        with what `failed` answers.
        """
        seen = 0
        ends = time.monotonic() + within_s
        while True:
            if (error := failed()) is not None:
                raise GaveUp(str(error)) from error
            if time.monotonic() > ends:
                raise GaveUp(f"run {run} has not ended within {within_s:.0f} s")
            # A quiet stream ends in a timeout, one of a restarted store in an error: look, go on.
            with contextlib.suppress(requests.RequestException):
                url = f"{self.store}/runs/{run}/log?follow=1"
                with requests.get(url, stream=True, timeout=(5, STREAM_QUIET_S)) as response:
                    response.raise_for_status()
                    lines = response.iter_lines(chunk_size=1, decode_unicode=True)
                    for number, line in enumerate(line for line in lines if line.strip("\r")):
                        if number >= seen:
                            seen += 1
                            yield line.strip("\r")
            with contextlib.suppress(requests.RequestException):
                status = self.run(run)["status"]
                if status in ("succeeded", "failed", "cancelled"):
                    return
                if status in ("paused", "in_doubt"):
                    raise GaveUp(f"run {run} is {status}: curl the store for waiting_for")
            time.sleep(0.2)

    def ledger(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"{self.world}/ledger", params={"run": run})
        return found


def until(condition: Callable[[], bool], within_s: float, what: str) -> None:
    """Poll until `condition` holds, or raise GaveUp naming what did not come."""
    ends = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > ends:
            raise GaveUp(f"{what}: not within {within_s:.0f} s")
        time.sleep(0.1)
