"""Writers that know what they sent and what was acknowledged, and a judge of what is there.

Always: a run has one writer, which sends a batch only when the one before was acknowledged; so a
log must hold a beginning of what was sent, in whole batches, all acknowledged ones included.
"""

from __future__ import annotations

import random
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any

import requests

__all__ = ["Load", "Sent", "acknowledged", "faults"]

TIMEOUT_S = 30.0
EVENTS_PER_RUN = 40  # then the writer starts another one: creations lose power too
WRITERS = 4


@dataclass
class Sent:
    """A run as its writer knows it: batches of (event id, data)."""

    run: str
    is_started: bool = False
    batches: list[list[tuple[str, Any]]] = field(default_factory=list)
    acked: int = 0  # batches


class Load:
    """`with Load(url, dice, sent) as load: ...`; a writer ends at its first failure.

    Runs of `sent` go on; first the batch without an answer is sent again."""

    def __init__(
        self, url: str, dice: random.Random, sent: list[Sent], writers: int = WRITERS
    ) -> None:
        self.url = url
        self.sent = sent
        self.acks = 0
        self.failures: list[Exception] = []
        self._changed = threading.Condition()
        self._end = False
        own = [sent[at::writers][-2:] for at in range(writers)]
        self._writers = [
            threading.Thread(target=self._write, args=(random.Random(dice.random()), runs))
            for runs in own
        ]

    def __enter__(self) -> Load:
        for writer in self._writers:
            writer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end = True
        for writer in self._writers:
            writer.join()

    def wait_for_acks(self, count: int) -> None:
        with self._changed:
            enough = self._changed.wait_for(lambda: self.acks >= count or self.failures, 60)
        assert enough and not self.failures, self.failures

    def wait_for_the_end(self) -> None:
        """Until the store answers no writer any more."""
        for writer in self._writers:
            writer.join(TIMEOUT_S)
        assert not any(writer.is_alive() for writer in self._writers)

    def _write(self, dice: random.Random, runs: list[Sent]) -> None:
        with requests.Session() as session:
            try:
                for sent in runs:  # after the power cut: the same ids again, stored once
                    self._start(session, sent)
                    if sent.acked < len(sent.batches):
                        self._append(session, sent)
                while not self._end:
                    if not runs or len(runs[-1].batches) >= EVENTS_PER_RUN:
                        runs.append(Sent(f"run-{uuid.UUID(int=dice.getrandbits(128)).hex}"))
                        with self._changed:
                            self.sent.append(runs[-1])
                        self._start(session, runs[-1])
                    runs[-1].batches.append(_batch(dice))
                    self._append(session, runs[-1])
            except (requests.RequestException, Refused) as error:
                with self._changed:
                    self.failures.append(error)
                    self._changed.notify_all()

    def _start(self, session: requests.Session, sent: Sent) -> None:
        body = {"reducer": "merge"}
        answer = session.put(f"{self.url}/runs/{sent.run}", json=body, timeout=TIMEOUT_S)
        self._acked(answer)
        sent.is_started = True

    def _append(self, session: requests.Session, sent: Sent) -> None:
        events = [{"type": "x.note", "id": id, "data": data} for id, data in sent.batches[-1]]
        path = f"{self.url}/runs/{sent.run}/events"
        self._acked(session.post(path, json={"events": events}, timeout=TIMEOUT_S))
        sent.acked = len(sent.batches)

    def _acked(self, answer: requests.Response) -> None:
        if not answer.ok:
            raise Refused(f"{answer.status_code} {answer.text}")
        with self._changed:
            self.acks += 1
            self._changed.notify_all()


class Refused(Exception):
    """The store did not acknowledge."""


def _batch(dice: random.Random) -> list[tuple[str, Any]]:
    return [
        (f"{dice.getrandbits(128):032x}", {"text": dice.randbytes(dice.choice((8, 90, 700))).hex()})
        for _ in range(dice.randint(1, 3))
    ]


def acknowledged(sent: list[Sent]) -> int:
    """How many events."""
    return sum(run.is_started + sum(map(len, run.batches[: run.acked])) for run in sent)


def faults(url: str, sent: list[Sent]) -> tuple[int, list[str]]:
    """Acknowledged events that are missing; what else is wrong."""
    with requests.Session() as session:
        ready = session.get(f"{url}/readyz", timeout=TIMEOUT_S).json()
        logs = [(run, _events(session, url, run.run)) for run in sent]
    lost, wrong = 0, [f"{run}: {detail}" for run, detail in ready["damaged_runs"].items()]
    for run, found in logs:
        at, missing = (1, 0) if found else (0, int(run.is_started))
        if [event["seq"] for event in found] != [*range(1, len(found) + 1)]:
            wrong.append(f"{run.run}: seqs {[event['seq'] for event in found]}")
        for number, batch in enumerate(run.batches):
            there = [(event["id"], event["data"]) for event in found[at : at + len(batch)]]
            if there == batch:
                at += len(batch)
                continue
            if there:
                wrong.append(f"{run.run}: batch {number} is there in part, or is another")
            missing += sum(map(len, run.batches[number : run.acked]))
            break
        if at != len(found):
            wrong.append(f"{run.run}: {len(found) - at} events that nobody sent there")
        lost += missing
    return lost, wrong


def _events(session: requests.Session, url: str, run: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    path: str | None = f"/runs/{run}/events?limit=1000"
    while path is not None:
        answer = session.get(url + path, timeout=TIMEOUT_S)
        if answer.status_code == 404:
            return []
        assert answer.ok, answer.text
        page = answer.json()
        found += page["events"]
        path = page["next"]
    return found
