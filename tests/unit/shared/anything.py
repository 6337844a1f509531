"""Hypothesis strategies: any value we carry, and any event of any type in its right shape.

Always: made from the structs themselves, so that a new type or field is covered when it is born.
"""

from __future__ import annotations

import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

from stillrun import events as ev
from stillrun.events import EVENT_TYPES, Event
from stillrun.values import MAX_INT, MIN_INT
from unit.shared.runs import make_event

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
floats = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(MIN_INT, MAX_INT),
    st.integers(-2, 2),
    floats,
    st.sampled_from([0.0, -0.0, 1.0, 1, True, "", "1"]),
    texts,
    st.binary(max_size=4),
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)


values = st.recursive(scalars, containers, max_leaves=8)
json_scalars = scalars.filter(lambda value: not isinstance(value, bytes))
json_values = st.recursive(json_scalars, containers, max_leaves=8)

INSTANTS = ["2025-11-29T10:00:05Z", "2100-01-01T01:01:00+05:30", "9999-12-31T23:59:59.999Z"]
POINTERS = ["/vars/a", "/vars", "/input", "/input/0", "/vars/a/-", "/a/b", "", "no pointer", "/"]
POOLS: dict[str, list[Any]] = {  # small, so that events hit upon each other
    "effect": [f"e{n}" for n in range(1, 6)],
    "effects": [f"e{n}" for n in range(1, 6)],
    "doubts": [f"e{n}" for n in range(1, 6)],
    "wait": [f"w{n}" for n in range(1, 5)],
    "waits": [f"w{n}" for n in range(1, 5)],
    "subject": [None, *(f"e{n}" for n in range(1, 6))],
    "message": ["id-1", "id-2", "id-3"],
    "premise": ["p1", "p2"],
    "premises": ["p1", "p2"],
    "name": ["fare", "book", "go"],
    "path": POINTERS,
    "due": [None, *INSTANTS],
    "observed_at": INSTANTS,
    "answer": ["approve", "reject", "edit", None, 5],
    "edit": ["a", "b"],
}


def of_type(kind: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Values of an annotation; fields with a pool draw from it most of the time."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return st.lists(of_type(args[0], name), max_size=3)
    if origin is dict:
        return st.dictionaries(st.sampled_from(["a", "b", ""]), of_type(args[1]), max_size=2)
    if origin is typing.Literal:
        return st.sampled_from(args)
    if name in POOLS:
        return st.sampled_from(POOLS[name])
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(of_type(arg, name) for arg in args))
    if kind is Any:
        return values
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return structs(kind)
    return {
        type(None): st.none(),
        bool: st.booleans(),
        int: st.integers(-2, 10**6),
        float: floats,
        str: texts,
    }[kind]


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(
        kind,
        **{f.name: of_type(hints[f.name], f.name) for f in msgspec.structs.fields(kind)},
    )


built_in = {name: structs(kind) for name, kind in EVENT_TYPES.items()}
a_plan = st.lists(st.sampled_from(["fare", "book"]), max_size=3).map(
    lambda names: ev.PlanMade(
        calls=[ev.PlannedCall(effect="e1", name=name, args={"a": 1}) for name in names]
    )
)
a_reply = st.builds(
    ev.EffectSucceeded,
    effect=st.sampled_from(POOLS["effect"]),
    result=structs(ev.ModelReply).map(msgspec.to_builtins),
)
likely = [built_in[name] for name in EVENT_TYPES if name.startswith(("effect_", "wait_"))]
datas = st.one_of(
    *built_in.values(), *likely, a_plan, a_reply, st.tuples(st.just("lg.checkpoint"), values)
)


@st.composite
def histories(draw: st.DrawFn, reducer: str, max_size: int = 25) -> list[Event]:
    """A run created with this reducer, then anything at all."""
    created = ev.RunCreated(run="r", log_id="l", reducer=reducer, agent="a", input=draw(values))
    drawn = draw(st.lists(st.tuples(datas, st.integers(0, 3)), max_size=max_size))
    return [make_event(1, created)] + [
        make_event(seq, data, epoch=epoch) for seq, (data, epoch) in enumerate(drawn, 2)
    ]
