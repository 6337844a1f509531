"""Starting a run: what its first event says, and whether a second start means the same run."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator

from stillrun.check import check_limits
from stillrun.errors import InvalidBody, InvalidParameter, RunExists, UnsupportedValue
from stillrun.events import RunCreated, Storage
from stillrun.values import pointer_join, same
from stillrun.wire import MAX_LABEL_KEY, MAX_LABEL_VALUE, MAX_LABELS, StartRun

from .runs import Entry
from .storage_models import MAX_EVERY, Policy

__all__ = ["OneAtATime", "check_storage", "confirm", "created"]


class OneAtATime:
    """Run ids that somebody is busy with: one holder for each, and none waits for another id's.

    Runs that are started at once would else wait for each other's syncs, with all their threads.
    """

    def __init__(self) -> None:
        self._freed = threading.Condition()
        self._busy: set[str] = set()

    @contextlib.contextmanager
    def holding(self, run: str) -> Iterator[None]:
        """Be the only one for the length of a block."""
        with self._freed:
            self._freed.wait_for(lambda: run not in self._busy)
            self._busy.add(run)
        try:
            yield
        finally:
            with self._freed:
                self._busy.remove(run)
                self._freed.notify_all()


def created(run: str, body: StartRun) -> RunCreated:
    """The first event's data; raises what is wrong with the request."""
    reducer = body.reducer or "agent"
    if reducer == "agent" and body.agent is None:
        raise InvalidParameter(
            "agent", "a run needs its agent's name; an outsider's run says reducer merge or none"
        )
    if reducer == "merge" and not isinstance(body.input, dict | None):
        raise UnsupportedValue("/input", "the input of a merge run is an object")
    if body.storage is not None:
        check_storage(body.storage, "/storage")
    if body.limits is not None:
        check_limits(body.limits)
    _check_labels(body.labels or {})
    defaults = RunCreated(run=run, log_id=secrets.token_hex(8), reducer=reducer)
    return RunCreated(
        run=run,
        log_id=defaults.log_id,
        reducer=reducer,
        agent=body.agent,
        agent_version=body.agent_version,
        input=body.input,
        seed=body.seed or 0,
        labels=body.labels or {},
        storage=body.storage or defaults.storage,
        limits=body.limits or defaults.limits,
    )


def check_storage(storage: Storage, pointer: str = "") -> None:
    """Raise InvalidBody where a storage model and its k do not go together."""
    if storage.every is None:
        return
    if not 1 <= storage.every <= MAX_EVERY:
        raise InvalidBody(f"{pointer}/every", f"from 1 to {MAX_EVERY} events")
    if storage.model is not None and not Policy(storage.model, storage.every).counts_events:
        raise InvalidBody(f"{pointer}/every", f"model {storage.model} counts no events")


def _check_labels(labels: dict[str, str]) -> None:
    if len(labels) > MAX_LABELS:
        raise InvalidBody("/labels", f"a run has at most {MAX_LABELS} labels")
    for key, value in labels.items():
        if not 1 <= len(key) <= MAX_LABEL_KEY or len(value) > MAX_LABEL_VALUE:
            detail = f"a key has 1 to {MAX_LABEL_KEY} characters, a value up to {MAX_LABEL_VALUE}"
            raise InvalidBody(pointer_join("/labels", key[:MAX_LABEL_KEY]), detail)


def confirm(entry: Entry, first: RunCreated, body: StartRun) -> None:
    """Compare only what the client sent with the run's first event; raises RunExists."""
    sent = {
        "agent": body.agent,
        "agent_version": body.agent_version,
        "seed": body.seed,
        "labels": body.labels,
        "storage": body.storage,
        "reducer": body.reducer,
        "limits": body.limits,
    }
    differs = [
        name for name, value in sent.items() if value is not None and value != getattr(first, name)
    ]
    if body.input is not None and not same(body.input, first.input):
        differs.append("input")
    if differs:
        detail = f"run {entry.run!r} was started with another {', '.join(differs)}"
        raise RunExists(detail, run=entry.run, differs=differs, head_seq=entry.head_seq)
