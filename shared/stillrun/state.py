"""What a run is at one seq: `Control` (bounded by what is open) and the reducer's content.

Always: State at seq n = fold of events 1..n (I3); every dict and message held here is replaced,
never changed in place, so a copy of the outer containers is a frozen picture; instants are
milliseconds since 1970 inside, RFC 3339 in the view.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .events import EffectKind, Limits, Mode, OnDoubt, Storage, WaitKind
from .values import from_rfc3339, rfc3339

__all__ = [
    "AgentContent",
    "Control",
    "Effect",
    "Group",
    "Lease",
    "State",
    "Wait",
    "from_view",
    "new_state",
    "ordinal_of",
    "view",
    "view_effect",
    "view_wait",
]

Ended = Literal["succeeded", "failed", "cancelled"]


def ordinal_of(effect_id: str) -> int:
    """The n of `en`; 0 of what is no effect's id: a fold never raises."""
    digits = effect_id[1:]
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else 0


class Effect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A live call: planned, open (intended, no outcome yet) or in doubt. Finished ones: the log."""

    effect: str
    kind: EffectKind
    name: str
    args: Any
    status: Literal["planned", "open", "in_doubt"]
    key: str | None = None
    on_doubt: OnDoubt = "ask"
    writes: bool = False
    attempt: int = 0
    epoch: int = 0  # of the last intent: only that epoch may still hand in the outcome
    retry_at_ms: int | None = None
    ask: bool = False
    why: str | None = None
    approval: str | None = None  # the wait that has approved, or is asked to approve, this call
    approved: bool = False
    real: bool = False  # approved to be made for real where effects are simulated
    mode: Mode | None = None
    rests_on: dict[str, Any] = {}
    seqs: list[int] = []  # of the events that made it what it is

    @property
    def ordinal(self) -> int:
        return ordinal_of(self.effect)

    @property
    def waits_for_person(self) -> bool:
        """In doubt, and only a person can say what happened (I7)."""
        return self.status == "in_doubt" and self.ask


class Wait(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question to the outside, open or resolved."""

    wait: str
    kind: WaitKind
    status: Literal["open", "answered", "timed_out", "cancelled", "reopened"] = "open"
    subject: str | None = None
    prompt: str | None = None
    due_ms: int | None = None
    default: Any = None
    edit: list[str] = []
    name: str | None = None
    simulates: bool = False
    opened_at_ms: int = 0
    answer: Any = None
    args: dict[str, Any] | None = None
    by: str | None = None
    comment: str | None = None
    seqs: list[int] = []


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Who may work; judged by the store's monotonic clock alone, which is not state."""

    worker: str
    claim: str
    ttl_s: float


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of the last plan: results go to `at`.. in call order, whenever they arrive."""

    at: int
    order: list[str]
    done: list[str] = []

    def has(self, effect_id: str) -> bool:
        """Whether the call is of this group, whose ids are consecutive."""
        place = ordinal_of(effect_id) - ordinal_of(self.order[0])
        return 0 <= place < len(self.order)


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that nobody has waited for yet."""

    name: str
    payload: Any
    by: str | None = None


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """Where a fork was cut off."""

    run: str
    log_id: str
    seq: int
    effects: Literal["simulate", "live"] = "simulate"


class Control(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All that `check`, claims, timers and `status` read; the same for every reducer."""

    run: str = ""
    log_id: str = ""
    reducer: Literal["agent", "merge", "none"] = "agent"
    agent: str | None = None
    agent_version: int | None = None
    vars_version: int = 0  # to which the author's vars were migrated last
    seed: int = 0
    labels: dict[str, str] = {}
    storage: Storage = Storage()
    limits: Limits = Limits()
    parent: Parent | None = None
    seq: int = 0
    at_ms: int = 0
    created_at_ms: int = 0
    epoch: int = 0
    lease: Lease | None = None
    lapsed: bool = False  # the last lease ran out; the next grant is a takeover
    grants: int = 0
    idle_grants: int = 0  # grants in a row without progress: a crash loop is paused
    ordinal: int = 0  # of the last effect given one
    wait_count: int = 0
    message_count: int = 0
    tokens: int = 0  # of models, read and written
    cost: float = 0.0
    premise_ids: list[str] = []  # each once, however often it was read again
    effects: dict[str, Effect] = {}
    waits: dict[str, Wait] = {}
    group: Group | None = None
    model_at: int = 0  # where the reply of the open model call goes: before what came meanwhile
    pending: bool = False  # `decide` has something new to look at
    compacted_at: int = 0  # the last ordinal when messages made way for shorter ones
    model_error: str | None = None
    model_error_type: str | None = None
    unread: list[str] = []
    signals: list[Signal] = []
    paused: str | None = None
    cancel: str | None = None
    ended: Ended | None = None
    output: Any = None
    error: Any = None
    tags: dict[str, int] = {}
    deleted: bool = False

    @property
    def simulates(self) -> bool:
        """Whether this is a fork whose writes are not made (I8), but where a person says so."""
        return self.parent is not None and self.parent.effects == "simulate"

    def copy(self) -> Control:
        """A copy to try events on; members are replaced by `apply`, never mutated."""
        return msgspec.structs.replace(self)


class AgentContent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an agent's run is about."""

    input: Any = None
    messages: list[Any] = []
    vars: dict[str, Any] = {}
    premises: dict[str, Any] = {}
    waits: dict[str, Wait] = {}


class State(msgspec.Struct, kw_only=True):
    """The whole state. `content` is None where only control is kept; `value` is what an outsider's
    run (`merge`) has become."""

    control: Control
    content: AgentContent | None = None
    value: Any = None

    def freeze(self) -> State:
        """A picture that later folding does not change (containers copied, members shared)."""
        content = self.content
        if content is not None:
            content = AgentContent(
                input=content.input,
                messages=list(content.messages),
                vars=content.vars,
                premises=dict(content.premises),
                waits=dict(content.waits),
            )
        return State(control=self.control.copy(), content=content, value=self.value)


def new_state(*, with_content: bool = True) -> State:
    """The state before the first event."""
    return State(control=Control(), content=AgentContent() if with_content else None)


def view_effect(effect: Effect) -> dict[str, Any]:
    """An effect as people and `decide` see it."""
    shown: dict[str, Any] = msgspec.to_builtins(effect, builtin_types=(bytes,))
    shown.setdefault("attempt", 0)
    shown.setdefault("key", None)
    shown.pop("retry_at_ms", None)
    if effect.retry_at_ms is not None:
        shown["retry_at"] = rfc3339(effect.retry_at_ms)
    return shown


def view_wait(wait: Wait) -> dict[str, Any]:
    """A wait as people and `decide` see it."""
    shown: dict[str, Any] = {
        "wait": wait.wait,
        "kind": wait.kind,
        "status": wait.status,
        "subject": wait.subject,
        "prompt": wait.prompt,
        "opened_at": rfc3339(wait.opened_at_ms),
        "due": None if wait.due_ms is None else rfc3339(wait.due_ms),
        "default": wait.default,
        "edit": list(wait.edit),
        "name": wait.name,
        "seqs": list(wait.seqs),
    }
    if wait.simulates:
        shown["simulates"] = True
    if wait.status != "open":
        shown |= {"answer": wait.answer, "args": wait.args, "by": wait.by}
        shown |= {"comment": wait.comment}
    return shown


def view(state: State, status: str) -> Any:
    """The state as `GET /state` gives it and `decide` reads it; `from_view` is its inverse.

    An agent's: a map with the keys of DESIGN 7 and `control`, the fold's own bookkeeping.
    A merge run's: the merged value. A run without reducer: null.
    """
    control, content = state.control, state.content
    if control.reducer != "agent" or content is None:
        return state.value
    return {
        "status": status,
        "agent": control.agent,
        "agent_version": control.agent_version,
        "input": content.input,
        "messages": content.messages,
        "vars": content.vars,
        "premises": content.premises,
        "waits": {key: view_wait(wait) for key, wait in content.waits.items()},
        "effects": {key: view_effect(effect) for key, effect in control.effects.items()},
        "output": control.output,
        "error": control.error,
        "control": msgspec.to_builtins(control, builtin_types=(bytes,)),
    }


def from_view(shown: dict[str, Any]) -> State:
    """The fold's own state from an agent's view, as a worker reads it over HTTP."""
    waits = {}
    for key, item in shown["waits"].items():
        fields = {k: v for k, v in item.items() if k not in ("due", "opened_at")}
        fields["opened_at_ms"] = from_rfc3339(item["opened_at"], "opened_at")
        if item["due"] is not None:
            fields["due_ms"] = from_rfc3339(item["due"], "due")
        waits[key] = msgspec.convert(fields, Wait)
    return State(
        control=msgspec.convert(shown["control"], Control),
        content=AgentContent(
            input=shown["input"],
            messages=list(shown["messages"]),
            vars=shown["vars"],
            premises=dict(shown["premises"]),
            waits=waits,
        ),
    )
