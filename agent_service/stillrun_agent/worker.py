"""The worker: claims runs, works on many at once, renews their leases, drains when it is stopped.

Always: a claim that was sent is repeated with its id until it is answered, so no grant is lost;
what is held is listed in every claim; after `drain` nothing new starts, and what was in flight is
recorded or given back. Nothing is kept here that the log does not have.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, Self

from stillrun import wire
from stillrun.agent import Agent
from stillrun.client import Interrupted, StoreClient, new_id
from stillrun.errors import InvalidBody, SchemaBehind, StillrunError, Unavailable
from stillrun.schema import SCHEMA_VERSION

from .figures import Figures
from .leases import HeldLease, Leases
from .models import ModelFactory
from .offering import Offering
from .registry import Registry
from .run_work import RunWork
from .secrets import GuardedPerformer, guarded
from .slots import Slots

__all__ = ["Worker"]

_log = logging.getLogger("stillrun.agent")

CLAIM_POLL_S = 2.0  # a claim is waited for, also when we stop: what it grants must not be lost
TROUBLE_WAIT_S = 5.0  # after a refusal that time alone may mend: an upgrade, the right volume
HOLD_BACK_FIRST_S, HOLD_BACK_MAX_S = 1.0, 30.0  # a run that breaks, from grant to grant
MAX_BROKEN = 1_000  # runs whose breaks in a row are remembered here
WATCH_S = 1.0  # how often agents that decide for ever are looked for
GIVE_BACK_S = 5.0  # how long an interrupted claim is repeated, to give back what it was granted


class Worker:
    """Works on the runs of some agents until it is stopped; the service has one.

    In a process of your own: `with Worker("http://127.0.0.1:8100", [agent]) as worker: ...` starts
    it, and drains and stops it at the end; another process may host another. client: a StoreClient,
    which stays open, or the URL of a store. registry: one, or the agents themselves. name: for
    people; the id that claims carry is random (`worker_id`). What comes from `secrets_dir` is not
    stored; for your logs there is `secrets.RedactSecrets`.
    """

    def __init__(
        self,
        client: StoreClient | str,
        registry: Registry | Iterable[Agent],
        *,
        name: str = "worker",
        concurrency: int = 16,
        lease_ttl_s: float = 10.0,
        drain_s: float = 60.0,
        secrets_dir: Path | None = None,
        models: ModelFactory | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.worker_id = f"{name}-{secrets.token_hex(4)}"
        self._own_client: StoreClient | None = None
        if isinstance(client, str):
            client = self._own_client = StoreClient(client)
        self._client, self._clock = guarded(client, secrets_dir), clock
        self._registry = registry if isinstance(registry, Registry) else Registry.of(registry)
        self._concurrency, self._ttl_s, self._drain_s = concurrency, lease_ttl_s, drain_s
        self._performer = GuardedPerformer(secrets_dir=secrets_dir)
        self._models = models or ModelFactory()
        self._offering = Offering(self._registry, clock)
        self._slots = Slots()
        self.figures = Figures()
        self._leases = Leases(client, self.worker_id, lease_ttl_s, clock=clock)
        self._draining = threading.Event()
        self._claims_over = threading.Event()
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._works: dict[tuple[str, int], RunWork] = {}
        self._ended: set[RunWork] = set()  # with calls that go on
        self._broken: dict[str, int] = {}  # run -> grants in a row that ended in a defect
        self._trouble: str | None = "not started"
        self._claims = threading.Thread(target=self._claim_runs, name="claims", daemon=True)
        self._watch = threading.Thread(target=self._watch_works, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.drain()
        self.stop()
        if self._own_client is not None:
            self._own_client.close()

    def start(self) -> None:
        """Begin to claim and to work; returns at once. The store may come up later."""
        self._leases.start()
        self._watch.start()
        self._claims.start()

    def is_ready(self) -> bool:
        """Whether the store has taken our claims so far: its id and version are the right ones."""
        return self._trouble is None and not self._draining.is_set()

    def is_draining(self) -> bool:
        """Whether no new run is taken any more."""
        return self._draining.is_set()

    def runs_in_work(self) -> int:
        """Runs that it works on now."""
        with self._changed:
            return len(self._works)

    def calls_in_flight(self) -> int:
        """Calls of these runs that have not ended."""
        with self._changed:
            works = list(self._works.values())
        return sum(work.calls_in_flight() for work in works)

    def drain(self) -> None:
        """Claim no more, let calls in flight finish for `drain_s`, record them, release leases.

        What hangs is not waited for: calls far beyond their time, agents that decide for ever.
        """
        ends = self._clock() + self._drain_s
        self._draining.set()
        self._wake_all()
        if self._claims.is_alive():
            self._claims.join(max(0.0, ends - self._clock()))
        self._claims_over.set()
        self._wake_all()
        with self._changed:
            self._changed.wait_for(self._has_no_works, max(0.0, ends - self._clock()))
        # Results of runs that we lost: their calls may finish and hand them in as well.
        while self._clock() < min(ends, self._late_until()):
            time.sleep(0.05)

    def stop(self) -> None:
        """End at once. What is in flight has no outcome here: its lease ends with a doubt."""
        self._draining.set()
        self._stopping.set()
        self._wake_all()
        with self._changed:
            self._changed.wait_for(self._has_no_works, self._ttl_s)
        self._leases.stop()
        self._performer.close()

    def _wake_all(self) -> None:
        with self._changed:
            self._changed.notify_all()
            works = list(self._works.values())
        for work in works:
            work.wake()

    def _has_no_works(self) -> bool:
        """Whether no run is worked on, but by agents that decide for ever."""
        return all(work.is_stuck() for work in self._works.values())

    def _late_until(self) -> float:
        with self._changed:
            ended = list(self._ended)
        return max((work.late_until() or 0.0 for work in ended), default=0.0)

    def _late_over(self, work: RunWork) -> None:
        with self._changed:
            self._ended.discard(work)

    def _watch_works(self) -> None:
        while not self._stopping.wait(WATCH_S):
            with self._changed:
                stuck = [work for work in self._works.values() if work.is_stuck()]
                if stuck:
                    self._changed.notify_all()

    # --- claims

    def _claim_runs(self) -> None:
        while not self._draining.is_set():
            free = self._wait_for_room()
            if free == 0:
                continue
            try:
                self._claim(free)
            except Interrupted:
                return
            except Exception as error:
                self._in_trouble(error)

    def _wait_for_room(self) -> int:
        with self._changed:
            self._changed.wait_for(
                lambda: self._draining.is_set() or len(self._works) < self._concurrency
            )
            return 0 if self._draining.is_set() else self._concurrency - len(self._works)

    def _claim(self, limit: int) -> None:
        """One claim, repeated with its id until it is answered; its grants go to work."""
        if self._trouble is not None:
            self._know_the_store()
        agents = self._offering.agents()
        if not agents:
            if self._trouble is not None:
                _log.warning("%s: no agent to work for: see the files that failed", self.worker_id)
                self._trouble = None
            self._draining.wait(CLAIM_POLL_S)
            return
        claim = self._claim_of(agents, limit)
        while True:
            sent_at = self._clock()
            try:
                grants = self._client.claim(claim, stop=self._draining)
                break
            except Interrupted:
                self._give_back(claim)
                raise
            except InvalidBody as error:
                if not self._offering.is_too_much(error):
                    raise
                claim = self._claim_of(self._offering.agents(), limit)
            except Unavailable as error:
                self._report(f"the store is away: {error.detail}")
        if self._trouble is not None:
            _log.info("%s: the store takes our claims", self.worker_id)
            self._trouble = None
        self.figures.count("claims")
        self.figures.count("grants", by=len(grants))
        for grant in grants:
            if self._draining.is_set():
                self._release(grant, "draining")
            else:
                self._begin(grant, sent_at)

    def _claim_of(self, agents: list[str | wire.OfferedAgent], limit: int) -> wire.ClaimRuns:
        return wire.ClaimRuns(
            worker=self.worker_id,
            claim=new_id(),
            agents=agents,
            schema_version=SCHEMA_VERSION,
            holding=self._leases.held(),
            limit=limit,
            ttl_s=self._ttl_s,
            # The first is answered at once: then we know that the store takes us.
            timeout_s=0.0 if self._trouble is not None else CLAIM_POLL_S,
        )

    def _know_the_store(self) -> None:
        """An agent behind the store claims nothing; one ahead of it waits for its upgrade."""
        theirs = self._client.about(stop=self._draining).get("schema_version")
        if theirs != SCHEMA_VERSION:
            detail = f"the store's schema version is {theirs}, ours is {SCHEMA_VERSION}"
            raise SchemaBehind(detail, schema_version=theirs)

    def _give_back(self, claim: wire.ClaimRuns) -> None:
        """We stop before the claim was answered; what it was granted is for others."""
        again = wire.ClaimRuns(
            worker=claim.worker,
            claim=claim.claim,
            agents=claim.agents,
            schema_version=claim.schema_version,
            holding=claim.holding,
            limit=0,
            ttl_s=claim.ttl_s,
        )
        try:
            grants = self._client.claim(again, retry_for_s=GIVE_BACK_S)
        except StillrunError as error:
            _log.info("what was granted at the end runs out by itself: %s", error.detail)
            return
        for grant in grants:
            self._release(grant, "draining")

    def _release(self, grant: wire.Grant, why: Literal["released", "draining"]) -> None:
        release = wire.ReleaseLease(worker=self.worker_id, epoch=grant.epoch, why=why)
        try:
            self._client.release(grant.run, release, retry_for_s=GIVE_BACK_S)
        except StillrunError as error:
            _log.info("run=%s: its lease runs out by itself: %s", grant.run, error.detail)

    def _in_trouble(self, error: Exception) -> None:
        self._report(f"claims nothing: {type(error).__name__}: {error}")
        self._draining.wait(TROUBLE_WAIT_S)

    def _report(self, text: str) -> None:
        if text != self._trouble:
            _log.warning("%s: %s", self.worker_id, text)
        self._trouble = text

    # --- runs

    def _begin(self, grant: wire.Grant, sent_at: float) -> None:
        agent = None if grant.agent is None else self._registry.get(grant.agent)
        if (grant.run, grant.epoch) in self._works:
            return
        if agent is None:
            _log.error("run=%s was granted, but no agent is named %r", grant.run, grant.agent)
            self._release(grant, "released")
            return
        breaks = self._broken.get(grant.run, 0)
        lease = HeldLease(grant.run, grant.epoch, self._ttl_s, sent_at)
        work = RunWork(
            grant,
            agent,
            lease,
            client=self._client,
            worker=self.worker_id,
            performer=self._performer,
            models=self._models,
            slots=self._slots,
            draining=self._draining,
            claims_over=self._claims_over,
            stop=self._stopping,
            clock=self._clock,
            hold_back_s=min(HOLD_BACK_FIRST_S * 2.0 ** min(breaks, 16), HOLD_BACK_MAX_S),
            late_over=self._late_over,
            figures=self.figures,
        )
        with self._changed:
            self._works[grant.run, grant.epoch] = work
        self._leases.hold(lease, work.heard)
        thread = threading.Thread(target=self._work, args=(work,), name=grant.run, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # No more threads. Without this its lease would be renewed, and nobody would work on it.
            self._leases.drop(lease)
            with self._changed:
                del self._works[grant.run, grant.epoch]
            self._release(grant, "released")
            raise

    def _work(self, work: RunWork) -> None:
        try:
            work.work()
        finally:
            self._leases.drop(work.lease)
            with self._changed:
                del self._works[work.run, work.epoch]
                breaks = self._broken.pop(work.run, 0)
                if work.broke and len(self._broken) < MAX_BROKEN:
                    self._broken[work.run] = breaks + 1
                if work.late_until() is not None:
                    self._ended.add(work)
                self._changed.notify_all()
