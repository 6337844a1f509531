"""The closed set of built-in events: facts about a run, past tense, immutable (DESIGN 3).

Always: the class may be renamed, its TYPE is on disk for ever; a field is added with a default or
through an upcaster; fields carry their unit. Types with a dot are outsiders' and carry any data.
"""

from __future__ import annotations

import enum
from typing import Any, ClassVar, Literal

import msgspec

from .errors import UnknownEventType

__all__ = ["EVENT_TYPES", "Event", "Writer", "event_class", "is_dotted", "make_key", "writers_of"]

EffectKind = Literal["model", "tool"]
OnDoubt = Literal["retry", "reconcile", "ask"]
Mode = Literal["simulated", "live"]  # of a call of a fork whose effects are simulated
Outcome = Literal["happened", "did_not_happen"]
WaitKind = Literal["approval", "question", "message", "signal", "callback", "timer"]
WaitReason = Literal["answered", "timed_out", "cancelled", "reopened"]


class Writer(enum.Enum):
    """Who may write a type: enforced at the store's door (DESIGN 3, 'written by')."""

    FACT = "agent, as a fact, with the current epoch"
    DECISION = "agent, as a decision, with a live lease"
    PEOPLE = "people, through a route"
    STORE = "the store"


class Data(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The data of one built-in type. TYPE is its name on disk, WRITERS who may append it."""

    TYPE: ClassVar[str] = ""
    WRITERS: ClassVar[frozenset[Writer]] = frozenset()


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One fact at its place. `data` is a Data struct, or any value for a dotted type.

    `id`: 32 hex digits, made by the writer. `at_ms`: the store's clock, never falling within a run;
    for display and refs only. `epoch`: the writer's, 0 where none was needed.
    """

    seq: int
    id: str
    type: str
    schema_version: int
    at_ms: int
    epoch: int
    data: Any


class Problem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What went wrong outside, as the model or a person will read it."""

    type: str
    message: str


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model call cost, and who answered: as the endpoint says, nothing is decided by it.

    0 tokens also where it does not say. model: its name for itself, or ours for it. fingerprint: of
    the software and weights behind it. seed: what was sent. finish: why the answer ended there.
    cost: in whatever the agent's prices are stated.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    model: str | None = None
    fingerprint: str | None = None
    seed: int | None = None
    finish: str | None = None
    cost: float | None = None


class BlobRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value too large for an event: its digest (64 hex), size in bytes, and a short preview."""

    sha256: str
    size_bytes: int
    media_type: str
    preview: str = ""


class PlannedCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call of a plan; `effect` is `e<ordinal>`."""

    effect: str
    name: str
    args: Any


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call that a model asks for; its ordinal follows from the order."""

    name: str
    args: Any


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an effect of kind model: text, calls, or both."""

    content: Any = None
    calls: list[ModelCall] = []


StorageModel = Literal["snapshot", "log", "hybrid", "adaptive"]


class Storage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When snapshots are taken, and which are kept; null: as the store's settings say.

    every: events between two snapshots, of `hybrid` and `adaptive`.
    """

    model: StorageModel | None = None
    every: int | None = None


class Limits(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Bounds of one run, before those of its agent; reaching one pauses the run.

    steps: effects. tokens: of models, read and written. cost: in whatever the agent's prices are
    stated. wall_s: since the run was created, waits included.
    """

    steps: int | None = None
    tokens: int | None = None
    cost: float | None = None
    wall_s: float | None = None


class VarsChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of the author's `vars`: a merge patch (RFC 7396), then appends to lists by key."""

    merge: dict[str, Any] = {}
    append: dict[str, list[Any]] = {}


FACT = frozenset({Writer.FACT})
DECISION = frozenset({Writer.DECISION})
PEOPLE = frozenset({Writer.PEOPLE})
STORE = frozenset({Writer.STORE})


class RunCreated(Data):
    TYPE, WRITERS = "run_created", PEOPLE
    run: str
    log_id: str
    reducer: Literal["agent", "merge", "none"]
    agent: str | None = None
    agent_version: int | None = None
    input: Any = None
    seed: int = 0
    labels: dict[str, str] = {}
    storage: Storage = Storage()
    limits: Limits = Limits()


class RunForked(Data):
    TYPE, WRITERS = "run_forked", STORE
    run: str
    log_id: str
    parent_run: str
    parent_log_id: str
    parent_seq: int
    effects: Literal["simulate", "live"] = "simulate"
    by: str | None = None
    reason: str | None = None


class LeaseGranted(Data):
    """The epoch is the seq of this event; the epoch fences every write (I5)."""

    TYPE, WRITERS = "lease_granted", STORE
    worker: str
    claim: str
    ttl_s: float
    takeover: bool = False


class LeaseReleased(Data):
    TYPE, WRITERS = "lease_released", STORE
    worker: str
    why: Literal["released", "expired", "draining"]


class RunResumed(Data):
    """The first append of every grant but the run's first: what the new holder started from."""

    TYPE, WRITERS = "run_resumed", FACT
    snapshot_seq: int | None = None
    replayed_events: int = 0
    premises: list[Any] = []
    doubts: list[str] = []


class PlanMade(Data):
    TYPE, WRITERS = "plan_made", DECISION
    calls: list[PlannedCall]


class MessageAdded(Data):
    TYPE, WRITERS = "message_added", PEOPLE
    message: str
    content: Any
    role: Literal["user"] = "user"
    mode: Literal["queue"] = "queue"
    by: str | None = None


class EffectIntended(Data):
    """Durable before the call is made (I6). `writes`: the call changes the outside world.

    `mode`: in a fork whose effects are simulated, whether the call is really made.
    """

    TYPE, WRITERS = "effect_intended", DECISION
    effect: str
    kind: EffectKind
    name: str
    args: Any
    args_digest: str
    key: str
    on_doubt: OnDoubt
    attempt: int = 1
    writes: bool = False
    rests_on: dict[str, Any] = {}
    mode: Mode | None = None


class EffectSucceeded(Data):
    TYPE, WRITERS = "effect_succeeded", FACT
    effect: str
    result: Any = None
    blob: BlobRef | None = None
    usage: Usage | None = None
    vars: VarsChange | None = None


class EffectFailed(Data):
    """Nothing was done. With `retry_in_s` the call is planned again, else this is its answer."""

    TYPE, WRITERS = "effect_failed", FACT
    effect: str
    error: Problem
    retry_in_s: float | None = None


class EffectDoubted(Data):
    """Nobody knows whether the call took effect. `ask`: a person has to say (I7)."""

    TYPE, WRITERS = "effect_doubted", frozenset({Writer.FACT, Writer.STORE})
    effect: str
    why: Literal["crash", "timeout", "error", "unknown"]
    ask: bool = False
    retry_in_s: float | None = None
    error: Problem | None = None


class EffectSettled(Data):
    TYPE, WRITERS = "effect_settled", frozenset({Writer.FACT, Writer.PEOPLE})
    effect: str
    outcome: Outcome
    result: Any = None
    blob: BlobRef | None = None
    evidence: Any = None
    by: str | None = None
    vars: VarsChange | None = None
    usage: Usage | None = None


class PremiseRecorded(Data):
    TYPE, WRITERS = "premise_recorded", FACT
    premise: str
    tool: str
    args: Any
    value: Any
    observed_at: str
    ttl_s: float


class PremiseChecked(Data):
    TYPE, WRITERS = "premise_checked", FACT
    premise: str
    verdict: Literal["holds", "drifted", "gone", "unknown"]
    observed_at: str
    value: Any = None


class PlanInvalidated(Data):
    TYPE, WRITERS = "plan_invalidated", DECISION
    premises: list[str]
    effects: list[str] = []
    waits: list[str] = []


class WaitOpened(Data):
    """`due`: absolute, RFC 3339; a writer may send `in_s` instead and the store writes `due`.

    `simulates`, of an approval: "approve" makes the call for real, "reject" answers it as rejected,
    and any other answer is its simulated result.
    """

    TYPE, WRITERS = "wait_opened", DECISION
    wait: str
    kind: WaitKind
    subject: str | None = None
    prompt: str | None = None
    due: str | None = None
    in_s: float | None = None
    default: Any = None
    edit: list[str] = []
    name: str | None = None
    simulates: bool = False


class WaitResolved(Data):
    TYPE, WRITERS = "wait_resolved", frozenset({Writer.DECISION, Writer.PEOPLE, Writer.STORE})
    wait: str
    reason: WaitReason
    answer: Any = None
    args: dict[str, Any] | None = None
    by: str | None = None
    comment: str | None = None


class SignalReceived(Data):
    TYPE, WRITERS = "signal_received", PEOPLE
    name: str
    payload: Any = None
    by: str | None = None


class VarsChanged(Data):
    TYPE, WRITERS = "vars_changed", FACT
    change: VarsChange


class VarsMigrated(Data):
    TYPE, WRITERS = "vars_migrated", DECISION
    from_version: int
    to_version: int
    patch: dict[str, Any]


class PatchStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step of a JSON patch (RFC 6902): add, replace or remove."""

    op: Literal["add", "replace", "remove"]
    path: str
    value: Any = None


class StatePatched(Data):
    TYPE, WRITERS = "state_patched", PEOPLE
    patch: list[PatchStep]
    by: str | None = None
    reason: str | None = None


class MessageReplaced(Data):
    TYPE, WRITERS = "message_replaced", PEOPLE
    message: str
    content: Any
    by: str | None = None


class KeptMessage(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One message after a compaction.

    With an `id`: one that was there, `kept` as it was or with this `content` instead. Without: a
    new one, of `role`.
    """

    id: str | None = None
    kept: bool = False
    role: Literal["user", "assistant"] | None = None
    content: Any = None


class MessagesCompacted(Data):
    """`count` messages from place `at` (from 0), `first` to `last`, made way for these.

    The log keeps them: the state at the seq before this event's has them all.
    """

    TYPE, WRITERS = "messages_compacted", DECISION
    at: int
    count: int
    first: str
    last: str
    messages: list[KeptMessage]


class TagSet(Data):
    TYPE, WRITERS = "tag_set", PEOPLE
    name: str
    at_seq: int


class StorageChanged(Data):
    TYPE, WRITERS = "storage_changed", PEOPLE
    storage: Storage


class RunDeletedEvent(Data):
    TYPE, WRITERS = "run_deleted", STORE
    by: str | None = None
    reason: str | None = None


class CancelRequested(Data):
    TYPE, WRITERS = "cancel_requested", PEOPLE
    by: str | None = None
    reason: str | None = None


class RunPaused(Data):
    TYPE, WRITERS = "run_paused", frozenset({Writer.PEOPLE, Writer.STORE})
    by: str | None = None
    reason: str | None = None


class RunUnpaused(Data):
    """`limits`: those given replace the run's; the others stay."""

    TYPE, WRITERS = "run_unpaused", PEOPLE
    by: str | None = None
    reason: str | None = None
    limits: Limits | None = None


class RunSucceeded(Data):
    TYPE, WRITERS = "run_succeeded", DECISION
    output: Any = None


class RunFailed(Data):
    TYPE, WRITERS = "run_failed", DECISION
    error: Problem


class RunCancelled(Data):
    TYPE, WRITERS = "run_cancelled", frozenset({Writer.DECISION, Writer.STORE})
    reason: str | None = None


EVENT_TYPES: dict[str, type[Data]] = {kind.TYPE: kind for kind in Data.__subclasses__()}

# Closed runs still take these: they say nothing about the work.
ALLOWED_WHEN_CLOSED = frozenset({"tag_set", "storage_changed", "run_deleted"})


def is_dotted(event_type: str) -> bool:
    """Dotted types are outsiders': any data, no meaning here."""
    return "." in event_type


def event_class(event_type: str) -> type[Data]:
    """The Data class of a built-in type, or UnknownEventType."""
    kind = EVENT_TYPES.get(event_type)
    if kind is None:
        raise UnknownEventType(
            f"{event_type!r:.80} is not a built-in type; outsiders' types carry a dot",
            event_type=event_type[:80],
        )
    return kind


def writers_of(event_type: str) -> frozenset[Writer]:
    """Who may write the type; outsiders' types are facts."""
    return FACT if is_dotted(event_type) else event_class(event_type).WRITERS


def make_key(run: str, log_id: str, ordinal: int, digest: str) -> str:
    """The idempotency key that the callee sees: `<run>.<log_id>.<ordinal>.<8 hex of digest>`."""
    return f"{run}.{log_id}.{ordinal}.{digest[:8]}"
