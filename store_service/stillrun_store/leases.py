"""Leases: permission to work on a run, judged by the store alone.

Always: the epoch is the seq of the grant and fences every write (I5); a claim sent twice gets the
same grants; whatever ends a lease doubts what is open (I6); only the monotonic clock counts.
"""

from __future__ import annotations

from typing import Any

from stillrun import events as ev
from stillrun.errors import Fenced, InvalidBody, SchemaBehind, StillrunError
from stillrun.schema import SCHEMA_VERSION
from stillrun.state import Control
from stillrun.status import is_runnable, status
from stillrun.wire import MAX_WAIT_S, ClaimRuns, Grant, ReleaseLease, RenewLeases

from .board import Offers
from .drafts import Draft
from .runs import Entry, Loaded
from .store import Store
from .timers import doubts, end_lease

__all__ = ["claim", "release", "renew"]

MIN_TTL_S, MAX_TTL_S = 0.5, 3600.0  # shorter dies of a slow disk, longer keeps a run from everyone
MAX_IDLE_GRANTS = 10  # grants in a row without progress: a crash loop, for a person to look at
MAX_CLAIM = 1_000


def claim(store: Store, body: ClaimRuns) -> list[Grant]:
    """Grant up to `limit` runs of these agents, waiting up to `timeout_s` for the first one.

    Leases that the worker holds and does not list are granted again: its last answer was lost.
    """
    _check_claim(body)
    offers = _offers(body)
    store.offered.note(body.worker, offers, store.monotonic())
    grants = _lost_grants(store, body)
    ends = store.monotonic() + body.timeout_s
    while len(grants) < body.limit and not store.stopping.is_set():
        taken = store.board.take(offers, body.limit - len(grants))
        grants += _grant_all(store, taken, body, offers)
        left = ends - store.monotonic()
        if grants or (not taken and left <= 0):
            break
        if not taken:
            store.board.wait_for_claimable(offers, left)
    return grants


def _offers(body: ClaimRuns) -> Offers:
    """What the worker has; of an agent that it names twice, the later version."""
    offers: dict[str, int | None] = {}
    for each in body.agents:
        name, version = (each, None) if isinstance(each, str) else (each.name, each.version)
        known = offers.get(name, version)
        offers[name] = None if version is None or known is None else max(version, known)
    return offers


def _grant_all(store: Store, taken: list[str], body: ClaimRuns, offers: Offers) -> list[Grant]:
    grants = []
    for at, run in enumerate(taken):
        try:
            grant = _grant(store, run, body, offers)
        except BaseException:
            # A run that was taken off the board and not granted would never be looked at again.
            store.put_back(taken[at:])
            raise
        if grant is not None:
            grants.append(grant)
    return grants


def _check_claim(body: ClaimRuns) -> None:
    if body.schema_version < SCHEMA_VERSION:
        detail = f"the store writes schema version {SCHEMA_VERSION}, you read {body.schema_version}"
        raise SchemaBehind(detail, schema_version=SCHEMA_VERSION)
    if not MIN_TTL_S <= body.ttl_s <= MAX_TTL_S:
        raise InvalidBody("/ttl_s", f"from {MIN_TTL_S} to {MAX_TTL_S} seconds")
    if not 0 <= body.timeout_s <= MAX_WAIT_S:
        raise InvalidBody("/timeout_s", f"from 0 to {MAX_WAIT_S} seconds")
    if not 0 <= body.limit <= MAX_CLAIM:
        raise InvalidBody("/limit", f"from 0 to {MAX_CLAIM}")
    if not body.worker or not body.claim or max(len(body.worker), len(body.claim)) > 200:
        raise InvalidBody("/worker", "worker and claim have 1 to 200 characters")


def _lost_grants(store: Store, body: ClaimRuns) -> list[Grant]:
    known = {(held.run, held.epoch) for held in body.holding}
    grants = []
    for run in store.board.held_by(body.worker):
        try:
            entry = store.entry(run)
            with entry.lock:
                control = store.loaded(entry).state.control
                lease = control.lease
                if lease is None or lease.worker != body.worker or not is_live(store, entry):
                    continue
                if (run, control.epoch) not in known:
                    # The worker counts the ttl from this request: the first answer never came.
                    entry.lease_until = store.monotonic() + lease.ttl_s
                    grants.append(_granted(entry, control))
        except StillrunError:
            continue  # damaged, or not to be read now: the worker's other runs go on
    return grants


def is_live(store: Store, entry: Entry) -> bool:
    """Whether the lease's time is not over yet."""
    return entry.lease_until is not None and store.monotonic() < entry.lease_until


def _grant(store: Store, run: str, body: ClaimRuns, offers: Offers) -> Grant | None:
    """Grant the run if it can still be taken; judged under its lock."""
    try:
        entry = store.entry(run)
        with store.locked(entry):
            loaded = store.loaded(entry)
            control = loaded.state.control
            takeover = control.lapsed
            if control.lease is not None:
                if is_live(store, entry):
                    return None
                end_lease(store, entry, loaded, "expired")
                takeover = True
            if not _fits(control, offers) or not is_runnable(control, store.now_ms()):
                store.look_again(entry, loaded)
                return None
            if control.idle_grants >= MAX_IDLE_GRANTS:
                store.commit(entry, loaded, _for_a_person(control), epoch=0)
                return None
            return _write_grant(store, entry, loaded, body, takeover)
    except StillrunError as error:
        if not error.retryable:
            return None  # deleted or damaged since it was put on the board
        raise


def _fits(control: Control, offers: Offers) -> bool:
    """Whether such a worker may take the run: older code would misread what newer has written."""
    if control.agent is None or control.agent not in offers:
        return False
    version = offers[control.agent]
    return version is None or version >= (control.agent_version or 0)


def _for_a_person(control: Control) -> list[Draft]:
    """What ends a crash loop: a pause; once a cancel was asked for, a question per doubt.

    A cancelled run cannot be paused: when a person has settled its doubts, the store ends it.
    """
    if control.cancel is None:
        reason = f"crash_loop: {MAX_IDLE_GRANTS} grants without progress"
        return [Draft(type="run_paused", data=ev.RunPaused(by="store", reason=reason))]
    return [
        Draft(
            type="effect_doubted",
            data=ev.EffectDoubted(effect=effect.effect, why="crash", ask=True),
        )
        for effect in control.effects.values()
        if effect.status == "in_doubt" and not effect.ask
    ]


def _write_grant(
    store: Store, entry: Entry, loaded: Loaded, body: ClaimRuns, takeover: bool
) -> Grant:
    data = ev.LeaseGranted(
        worker=body.worker, claim=body.claim, ttl_s=body.ttl_s, takeover=takeover
    )
    # Set before the write, so that nobody is offered the run between the write and this line.
    entry.lease_until = store.monotonic() + body.ttl_s
    try:
        drafts = [*doubts(loaded), Draft(type="lease_granted", data=data)]
        store.commit(entry, loaded, drafts, epoch=0)
    except BaseException:
        entry.lease_until = None
        store.board.update(entry)
        raise
    entry.lease_until = store.monotonic() + body.ttl_s
    store.board.watch_lease(entry.run, entry.lease_until)
    return _granted(entry, loaded.state.control)


def _granted(entry: Entry, control: Control) -> Grant:
    return Grant(
        run=entry.run,
        epoch=control.epoch,
        head_seq=entry.head_seq,
        agent=control.agent,
        first=control.grants == 1,
    )


def renew(store: Store, body: RenewLeases) -> list[dict[str, Any]]:
    """Prolong the leases that are still held; per run what its holder must know.

    A run that cannot be read now makes the request fail, after all others were prolonged.
    """
    shown, failed = [], None
    for held in body.leases:
        try:
            shown.append(_renew(store, body.worker, held.run, held.epoch))
        except StillrunError as error:
            failed = error
    if failed is not None:
        raise failed
    return shown


def _renew(store: Store, worker: str, run: str, epoch: int) -> dict[str, Any]:
    lost: dict[str, Any] = {"run": run, "epoch": epoch, "held": False}
    try:
        entry = store.entry(run)
        with entry.lock:  # not of the queue of writers: nothing is written, and leases must not end
            control = store.loaded(entry).state.control
            lease = control.lease
            mine = lease is not None and lease.worker == worker and control.epoch == epoch
            if lease is not None and mine and is_live(store, entry):
                entry.lease_until = store.monotonic() + lease.ttl_s
            return {
                "run": run,
                "epoch": epoch,
                "held": mine and is_live(store, entry),
                "head_seq": entry.head_seq,
                "status": status(control, store.now_ms()),
                "cancel": control.cancel is not None,
                "paused": control.paused is not None,
            }
    except StillrunError as error:
        if error.retryable:
            raise
        return lost | {"code": error.code}


def release(store: Store, run: str, body: ReleaseLease) -> int:
    """End the lease; what is open becomes doubt. Answers the head seq; a repeat is harmless."""
    with store.writing(run) as (entry, loaded):
        control = loaded.state.control
        if control.epoch != body.epoch:
            raise Fenced(
                f"the current epoch of run {run!r} is {control.epoch}",
                epoch=control.epoch,
                head_seq=entry.head_seq,
            )
        lease = control.lease
        if lease is not None and lease.worker != body.worker:
            raise Fenced(f"the lease of run {run!r} is {lease.worker!r}'s", epoch=control.epoch)
        end_lease(store, entry, loaded, body.why)
        return entry.head_seq
