"""Bodies as both services write and read them: one struct per request, unknown fields refused."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .events import Limits, Storage, StorageModel, Usage, VarsChange

__all__ = [
    "AnswerWait",
    "AppendEvents",
    "By",
    "ChangeStorage",
    "ClaimRuns",
    "Decisions",
    "NewEvent",
    "Nothing",
    "OfferedAgent",
    "ReleaseLease",
    "RenewLeases",
    "SendMessage",
    "SendSignal",
    "SettleEffect",
    "StartRun",
    "Unpause",
    "Verdict",
]

MAX_EVENTS_PER_REQUEST = 1_000  # one frame is held in memory, folded twice and synced at once
MAX_EVENT_BYTES = 1 << 20  # larger values are blobs: store by hash, log the hash
MAX_BODY_BYTES = 8 << 20  # eight full events; also the largest blob
MAX_LABELS = 64  # labels are kept in memory for every run, and shown in every row of a list
MAX_LABEL_KEY, MAX_LABEL_VALUE = 64, 256  # characters
MAX_WAIT_S = 60.0  # a poll holds a thread: longer ones ask again


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request's body."""


class StartRun(Body, omit_defaults=True):
    """PUT /runs/{run}, POST /runs. `id` makes the repeat of a POST without `run` safe."""

    run: str | None = None
    agent: str | None = None
    agent_version: int | None = None
    input: Any = None
    seed: int | None = None
    labels: dict[str, str] | None = None
    storage: Storage | None = None
    reducer: Literal["agent", "merge", "none"] | None = None
    limits: Limits | None = None
    id: str | None = None


class NewEvent(Body):
    """An event on its way in; without `id` the safe repeat is lost."""

    type: str
    data: Any = None
    id: str | None = None


class Decisions(Body):
    """Taken only if the run's last event before this frame is `after`."""

    after: int
    events: list[NewEvent]


class AppendEvents(Body, omit_defaults=True):
    """POST /runs/{run}/events: one frame, one fsync, all or nothing (I2)."""

    events: list[NewEvent] = []
    epoch: int | None = None
    expected_seq: int | None = None
    decisions: Decisions | None = None


class Appended(Body):
    """The answer to an append; `decisions` is null where none were sent.

    `at` is the store's time of every event of the frame: the writer folds them without reading.
    """

    run: str
    first_seq: int | None
    last_seq: int | None
    head_seq: int
    at: str | None = None
    decisions: Literal["taken", "stale", "refused"] | None = None
    refused: dict[str, Any] | None = None


class By(Body, omit_defaults=True):
    """POST cancel, pause; DELETE /runs/{run}."""

    by: str | None = None
    reason: str | None = None
    id: str | None = None


class Unpause(Body, omit_defaults=True):
    """POST unpause. `limits`: those given replace the run's: how a used up budget is raised."""

    by: str | None = None
    reason: str | None = None
    limits: Limits | None = None
    id: str | None = None


class ChangeStorage(Body, omit_defaults=True):
    """PUT /runs/{run}/storage: the whole choice; what is left out is as the store says."""

    model: StorageModel | None = None
    every: int | None = None
    id: str | None = None


class Nothing(Body):
    """The body of a request that needs none: empty, or an empty object."""


class Verdict(Body, omit_defaults=True):
    """POST approve, reject. `comment`: read by the model, or by `decide`, with a rejection."""

    by: str | None = None
    comment: str | None = None
    id: str | None = None


class SendMessage(Body, omit_defaults=True):
    content: Any
    by: str | None = None
    mode: Literal["queue"] = "queue"
    id: str | None = None


class SendSignal(Body, omit_defaults=True):
    payload: Any = None
    by: str | None = None
    id: str | None = None


class AnswerWait(Body, omit_defaults=True):
    answer: Any
    args: dict[str, Any] | None = None
    by: str | None = None
    comment: str | None = None
    id: str | None = None


class SettleEffect(Body, omit_defaults=True):
    """POST /runs/{run}/effects/{effect}/settle. `attempt`: settle only if it is still this one.

    `vars`, `usage`: what the call has changed of the author's vars, and what a model's has cost,
    where a worker hands in its result.
    """

    outcome: Literal["happened", "did_not_happen"]
    result: Any = None
    evidence: Any = None
    by: str | None = None
    attempt: int | None = None
    vars: VarsChange | None = None
    usage: Usage | None = None
    id: str | None = None


class Held(Body):
    run: str
    epoch: int


class OfferedAgent(Body):
    """An agent that a worker has. `version`: of its code; runs that need a later one are not for
    it."""

    name: str
    version: int


class ClaimRuns(Body):
    """POST /claims. `agents`: those this worker has; a bare name takes runs of any version.

    `holding`: leases it knows that it holds. `worker`: random per process; `claim`: random per
    claim, the same on its repeat.
    """

    worker: str
    claim: str
    agents: list[str | OfferedAgent]
    schema_version: int
    holding: list[Held] = []
    limit: int = 1
    ttl_s: float = 10.0
    timeout_s: float = 0.0


class Grant(Body):
    run: str
    epoch: int
    head_seq: int
    agent: str | None
    first: bool  # of the run: every later grant appends run_resumed first


class RenewLeases(Body):
    """POST /leases: renew many at once."""

    worker: str
    leases: list[Held]


class ReleaseLease(Body):
    """DELETE /runs/{run}/lease."""

    worker: str
    epoch: int
    why: Literal["released", "draining"] = "released"
