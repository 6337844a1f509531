"""What a run does next: a pure function of its state, the author's code and the hour.

Always: no clock is read and nothing is called but the author's `decide`; no write starts while
another may or may not have happened (I7); a call is planned before it is intended, and intended
before it is made (I6). The hour only tells whether a retry that was put off is due.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from stillrun import events as ev
from stillrun.agent import Agent, BadArguments, Tool
from stillrun.events import Data, Event
from stillrun.reducers import fold_into
from stillrun.schema import SCHEMA_VERSION
from stillrun.state import Control, Effect, State

from .budgets import used_up
from .children import child_of
from .compacting import compact_first
from .migrating import migrate
from .plan import Pause, intent, plan_next
from .simulating import ask_to_do

__all__ = ["Decision", "decide_next", "still_unknown", "tried"]

MAX_IN_FLIGHT = 64  # calls of one run: each may hold a thread; the others start as these return
MAX_UNKNOWNS = 5  # answers "unknown" of a reconcile hook, then a person is asked
UNKNOWN_FIRST_S, UNKNOWN_MAX_S = 1.0, 60.0  # between two questions to a callee

AGENT = "agent"  # as `by` of what an agent settles itself


@dataclass(frozen=True, slots=True)
class Decision:
    """What to append, and which effects in doubt to ask the callee about.

    `facts` hold whatever came meanwhile; where there are some, decide again with them folded.
    `pause`: why the run cannot go on; it comes without events, and a person is to look. `crowded`:
    a call was left for later because its tool has no place free.
    """

    facts: tuple[Data, ...] = ()
    events: tuple[Data, ...] = ()
    reconcile: tuple[str, ...] = ()
    pause: str | None = None
    crowded: bool = False


def decide_next(
    agent: Agent,
    state: State,
    now_ms: int,
    in_flight: Set[str] = frozenset(),
    free: Mapping[str, int] = MappingProxyType({}),
) -> Decision:
    """The next facts and decisions; empty while there is nothing to do but wait.

    `in_flight`: effects that this worker is calling, or asking about, right now. `free`: how many
    calls may start of tools that take only so many at a time. The state is left as it is.
    """
    room = _Room(MAX_IN_FLIGHT - len(in_flight), dict(free))
    control = state.control
    if control.ended is not None or control.paused is not None:
        return Decision()
    facts, reconcile = _doubts(agent, control, now_ms, in_flight)
    if facts:
        return Decision(facts=tuple(facts), reconcile=tuple(reconcile))
    if control.cancel is not None:
        ends = not control.effects
        return Decision(
            events=(ev.RunCancelled(reason=control.cancel),) if ends else (),
            reconcile=tuple(reconcile),
        )
    steps = migrate(agent, state)
    if isinstance(steps, Pause):
        return Decision(pause=steps.reason)
    if steps:
        return Decision(events=tuple(steps))  # hooks and tools read vars: they come after
    if control.effects:
        events = _start(agent, control, now_ms, in_flight, room)
    elif control.pending or not control.waits:
        planned_next = compact_first(agent, state, plan_next(agent, state))
        if isinstance(planned_next, Pause):
            return Decision(pause=planned_next.reason)
        events = planned_next
        # Planned and intended in one append: the plan stands before its intents in the same frame.
        if any(isinstance(event, ev.PlanMade) for event in events):
            planned = tried(state, events, now_ms)
            events += _start(agent, planned.control, now_ms, in_flight, room)
    else:
        events = []
    over = used_up(agent, control, now_ms)
    if over is not None and any(_uses_more(event) for event in events):
        return Decision(reconcile=tuple(reconcile), pause=over)
    return Decision(events=tuple(events), reconcile=tuple(reconcile), crowded=room.crowded)


def _uses_more(event: Data) -> bool:
    """Whether it takes the run further: an end does not, nor does listening for a message."""
    if isinstance(event, ev.WaitOpened):
        return event.kind not in ("message", "callback")
    return not isinstance(event, ev.RunSucceeded | ev.RunFailed)


def tried(state: State, events: list[Data], now_ms: int) -> State:
    """The state if these were appended now; seqs and times are provisional."""
    trial = state.freeze()
    for data in events:
        event = Event(
            seq=trial.control.seq + 1,
            id="",
            type=data.TYPE,
            schema_version=SCHEMA_VERSION,
            at_ms=max(trial.control.at_ms, now_ms),
            epoch=trial.control.epoch,
            data=data,
        )
        fold_into(trial, [event])
    return trial


# --- effects in doubt


def _doubts(
    agent: Agent, control: Control, now_ms: int, in_flight: Set[str]
) -> tuple[list[Data], list[str]]:
    """Facts that settle or hand on doubts, and those to ask the callee about."""
    facts: list[Data] = []
    ask_about: list[str] = []
    for effect in control.effects.values():
        if effect.status != "in_doubt" or effect.ask or effect.effect in in_flight:
            continue
        if effect.on_doubt == "ask":
            facts.append(_to_a_person(effect))
        elif effect.on_doubt == "reconcile":
            if not _can_be_asked(agent, effect):
                facts.append(_to_a_person(effect))
            elif _is_due(effect, now_ms):
                ask_about.append(effect.effect)
        elif control.cancel is not None:
            facts.append(_to_a_person(effect) if effect.writes else _of_no_consequence(effect))
        elif effect.kind == "tool" and _misfit(agent, effect) is not None:
            # The code has changed: the same call cannot be made again.
            facts.append(_to_a_person(effect) if effect.writes else _of_no_consequence(effect))
        elif effect.kind == "tool" and _acts_now(control, effect, agent.tools[effect.name]):
            facts.append(_of_no_consequence(effect))  # planned anew: whoever must be asked is asked
    return facts, ask_about


def _acts_now(control: Control, effect: Effect, tool: Tool) -> bool:
    """Whether a call that was begun as one without consequence would have some by now: the code
    has changed."""
    if effect.writes:
        return False
    if effect.mode == "simulated":
        return tool.simulate_hook is None
    return tool.writes or (control.simulates and tool.acts and not effect.real)


def _to_a_person(effect: Effect) -> Data:
    why: Any = effect.why or "unknown"
    return ev.EffectDoubted(effect=effect.effect, why=why, ask=True)


def _of_no_consequence(effect: Effect) -> Data:
    """A read, or a model's answer that nobody got, changed nothing: it counts as not done."""
    return ev.EffectSettled(
        effect=effect.effect,
        outcome="did_not_happen",
        evidence="the call changes nothing outside, and will not be repeated as it was",
        by=AGENT,
    )


def _can_be_asked(agent: Agent, effect: Effect) -> bool:
    tool = agent.tools.get(effect.name)
    if tool is None or tool.reconcile_hook is None:
        return False
    return _misfit(agent, effect) is None


def doubts_so_far(effect: Effect) -> int:
    """How often the callee could not say, or a little more: what the state keeps are its seqs.

    The last intent came after its epoch; of what followed the plan, which is the first, one is the
    intent itself and one the first doubt.
    """
    return max(0, sum(seq > effect.epoch for seq in effect.seqs[1:]) - 2)


def still_unknown(effect: Effect, error: ev.Problem | None = None) -> Data:
    """The callee could not say: ask it later, and after some tries a person."""
    tries = doubts_so_far(effect)
    if tries >= MAX_UNKNOWNS:
        return ev.EffectDoubted(effect=effect.effect, why="unknown", ask=True, error=error)
    wait_s = min(UNKNOWN_MAX_S, UNKNOWN_FIRST_S * 2**tries)
    return ev.EffectDoubted(effect=effect.effect, why="unknown", retry_in_s=wait_s, error=error)


# --- planned calls


def _is_due(effect: Effect, now_ms: int) -> bool:
    return effect.retry_at_ms is None or effect.retry_at_ms <= now_ms


def _misfit(agent: Agent, effect: Effect) -> ev.Problem | None:
    """Why this call cannot be made at all; its answer to the model, or to `decide`."""
    tool = agent.tools.get(effect.name)
    if tool is None:
        known = ", ".join(agent.tools) or "none"
        return ev.Problem(type="unknown_tool", message=f"no tool {effect.name!r}; known: {known}")
    try:
        tool.bind(effect.args)
    except BadArguments as error:
        return ev.Problem(type="bad_arguments", message=str(error))
    return None


@dataclass(slots=True)
class _Room:
    """How many calls may still start: of the run, and of tools that have a limit of their own."""

    calls: int
    free: dict[str, int]
    crowded: bool = False

    def has(self, tool: Tool) -> bool:
        if self.free.get(tool.name, 1) <= 0:
            self.crowded = True
            return False
        return self.calls > 0

    def use(self, name: str) -> None:
        self.calls -= 1
        if name in self.free:
            self.free[name] -= 1


def _start(
    agent: Agent, control: Control, now_ms: int, in_flight: Set[str], room: _Room
) -> list[Data]:
    """Approvals to ask for and calls to intend, in call order."""
    events: list[Data] = []
    waits = control.wait_count
    for effect in control.effects.values():
        again = effect.status == "in_doubt" and effect.on_doubt == "retry" and not effect.ask
        if not (again or effect.status == "planned") or effect.effect in in_flight:
            continue
        if effect.approval is not None and not effect.approved:
            continue
        if not _is_due(effect, now_ms):
            if _is_parked(agent, effect):
                waits += 1
                events.append(_callback(control, effect, f"w{waits}", now_ms))
            continue
        if effect.kind == "model":
            events.append(intent(control, effect, on_doubt="retry", writes=False))
            room.calls -= 1
            continue
        mode: ev.Mode | None = "live" if control.simulates else None
        problem = _misfit(agent, effect)
        if problem is not None:
            # Nothing was called, and the log says so like of any other call.
            events.append(intent(control, effect, on_doubt="retry", writes=False, mode=mode))
            events.append(ev.EffectFailed(effect=effect.effect, error=problem))
            continue
        tool = agent.tools[effect.name]
        if control.simulates and tool.acts and not effect.real:
            if tool.simulate_hook is None:
                waits += 1
                events.append(ask_to_do(tool, effect, f"w{waits}"))
            elif room.has(tool):
                events.append(
                    intent(control, effect, on_doubt="retry", writes=False, mode="simulated")
                )
                room.use(tool.name)
            continue
        approval = None if effect.approved else tool.approval_for(effect.args)
        if approval is not None and effect.status == "planned":
            waits += 1
            events.append(
                ev.WaitOpened(
                    wait=f"w{waits}",
                    kind="approval",
                    subject=effect.effect,
                    prompt=approval.prompt(effect.args),
                    in_s=approval.deadline_s,
                    default=approval.default,
                    edit=list(approval.edit),
                )
            )
            continue
        if (tool.writes and _another_is_in_doubt(control, effect)) or not room.has(tool):
            continue
        events.append(
            intent(control, effect, on_doubt=tool.on_doubt, writes=tool.writes, mode=mode)
        )
        room.use(tool.name)
    return events


def _is_parked(agent: Agent, effect: Effect) -> bool:
    """A call of an agent whose run goes on: to be told of its end, no worker is needed."""
    tool = agent.tools.get(effect.name)
    is_child = tool is not None and tool.agent is not None and effect.mode != "simulated"
    return is_child and effect.status == "planned"


def _callback(control: Control, effect: Effect, wait: str, now_ms: int) -> Data:
    left_ms = (effect.retry_at_ms or now_ms) - now_ms
    return ev.WaitOpened(
        wait=wait,
        kind="callback",
        subject=effect.effect,
        name=child_of(control.run, effect.effect),
        in_s=max(1.0, left_ms / 1000),
    )


def _another_is_in_doubt(control: Control, effect: Effect) -> bool:
    return any(
        other.status == "in_doubt" and (other.ask or other.on_doubt == "reconcile")
        for other in control.effects.values()
        if other.effect != effect.effect
    )
