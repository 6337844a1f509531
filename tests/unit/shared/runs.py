"""A run in memory, and words to make its history with.

Always: `add` does what the store does, check then apply; `force` leaves the check out, for what
the store writes itself and for what it must refuse.
"""

from __future__ import annotations

from typing import Any

from stillrun import codec
from stillrun import events as ev
from stillrun.check import check
from stillrun.errors import StillrunError
from stillrun.events import Event, make_key
from stillrun.reducers import apply
from stillrun.schema import SCHEMA_VERSION
from stillrun.state import Effect, State, new_state, view
from stillrun.status import status
from stillrun.values import args_digest

T0_MS = 1_764_410_400_000  # 2025-11-29T10:00:00Z


def make_event(seq: int, data: Any, *, epoch: int = 0, at_ms: int | None = None) -> Event:
    """An event at its place; `data` is a Data struct, or (dotted type, value)."""
    event_type, value = data if isinstance(data, tuple) else (data.TYPE, data)
    return Event(
        seq=seq,
        id=f"{seq:032x}",
        type=event_type,
        schema_version=SCHEMA_VERSION,
        at_ms=T0_MS + 1000 * seq if at_ms is None else at_ms,
        epoch=epoch,
        data=value,
    )


class Run:
    """A history with its state."""

    def __init__(self, *, reducer: str = "agent", log_id: str = "abc", **created: Any) -> None:
        self.events: list[Event] = []
        self.state: State = new_state()
        created.setdefault("agent", "concierge")
        self.add(ev.RunCreated(run="trip-1", log_id=log_id, reducer=reducer, **created))

    @property
    def control(self):
        return self.state.control

    @property
    def effects(self) -> dict[str, Effect]:
        return self.state.control.effects

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.state.content.messages

    @property
    def said(self) -> list[str]:
        """The messages in order: tool results by effect, the rest by content."""
        return [m.get("effect") or m["content"] for m in self.messages]

    @property
    def status(self) -> str:
        return status(self.control)

    def next(self, data: Any, **envelope: Any) -> Event:
        envelope.setdefault("epoch", self.control.epoch)
        return make_event(self.control.seq + 1, data, **envelope)

    def force(self, *datas: Any, **envelope: Any) -> Run:
        for data in datas:
            event = self.next(data, **envelope)
            self.state = apply(self.state, event)
            self.events.append(event)
        return self

    def add(self, *datas: Any, **envelope: Any) -> Run:
        for data in datas:
            check(self.state, self.next(data, **envelope))
            self.force(data, **envelope)
        return self

    def verdict(self, data: Any, **envelope: Any) -> str:
        """`ok`, or the code with which `check` refuses."""
        before = codec.encode_state(self.state)
        try:
            check(self.state, self.next(data, **envelope))
        except StillrunError as error:
            assert codec.encode_state(self.state) == before, "a refusal changed the state"
            return error.code
        assert codec.encode_state(self.state) == before, "check changed the state"
        return "ok"

    # --- longer phrases

    def lease(self, worker: str = "agent-1") -> Run:
        return self.add(ev.LeaseGranted(worker=worker, claim=f"c-{worker}", ttl_s=10.0))

    def plan(self, *calls: Any) -> Run:
        """Calls as names, or (name, args)."""
        first = self.control.ordinal + 1
        pairs = [call if isinstance(call, tuple) else (call, {"n": 1}) for call in calls]
        return self.add(
            ev.PlanMade(
                calls=[
                    ev.PlannedCall(effect=f"e{first + index}", name=name, args=args)
                    for index, (name, args) in enumerate(pairs)
                ]
            )
        )

    def intent(self, effect_id: str, **changed: Any) -> ev.EffectIntended:
        """The intent that fits a live effect, or the next model call."""
        effect = self.effects.get(effect_id)
        kind, name, args = ("model", "model", {"n": 0})
        if effect is not None:
            kind, name, args = effect.kind, effect.name, effect.args
        args = changed.pop("args", args)
        digest = args_digest(args)
        fields: dict[str, Any] = {
            "effect": effect_id,
            "kind": kind,
            "name": name,
            "args": args,
            "args_digest": digest,
            "key": make_key(self.control.run, self.control.log_id, int(effect_id[1:]), digest),
            "on_doubt": "retry",
            "attempt": (effect.attempt if effect else 0) + 1,
        }
        return ev.EffectIntended(**(fields | changed))

    def start(self, *effect_ids: str, **changed: Any) -> Run:
        for effect_id in effect_ids:
            self.add(self.intent(effect_id, **changed))
        return self

    def model(self, content: Any = None, calls: tuple[str, ...] = ()) -> Run:
        """A whole model call."""
        effect_id = f"e{self.control.ordinal + 1}"
        self.start(effect_id)
        return self.add(reply(effect_id, content, *calls))

    def approve_wait(self, effect_id: str, **fields: Any) -> Run:
        wait = f"w{self.control.wait_count + 1}"
        return self.add(ev.WaitOpened(wait=wait, kind="approval", subject=effect_id, **fields))


def reply(effect_id: str, content: Any = None, *calls: str) -> ev.EffectSucceeded:
    """A model's reply."""
    asked = [{"name": name, "args": {"n": 1}} for name in calls]
    return ev.EffectSucceeded(effect=effect_id, result={"content": content, "calls": asked})


def done(effect_id: str, result: Any = "ok") -> ev.EffectSucceeded:
    return ev.EffectSucceeded(effect=effect_id, result=result)


def failed(effect_id: str, **fields: Any) -> ev.EffectFailed:
    return ev.EffectFailed(effect=effect_id, error=PROBLEM, **fields)


def doubted(effect_id: str, **fields: Any) -> ev.EffectDoubted:
    return ev.EffectDoubted(effect=effect_id, **({"why": "crash"} | fields))


def settled(effect_id: str, outcome: str = "happened", **fields: Any) -> ev.EffectSettled:
    return ev.EffectSettled(effect=effect_id, outcome=outcome, **fields)


def said(message: str) -> ev.MessageAdded:
    return ev.MessageAdded(message=f"id-{message}", content=message)


def forked(run: Run, **fields: Any) -> ev.RunForked:
    return ev.RunForked(
        run="trip-2",
        log_id="def",
        parent_run=run.control.run,
        parent_log_id=run.control.log_id,
        parent_seq=run.control.seq,
        **fields,
    )


PROBLEM = ev.Problem(type="Boom", message="it broke")


def pixels(state: State) -> bytes:
    """All of a state, typed and with the order of its maps: what `==` would not tell apart."""
    return codec.encode_state(state)


def shown(run: Run) -> dict[str, Any]:
    return view(run.state, run.status)
