"""Folding changes of values: the author's vars, and patches by people."""

from __future__ import annotations

from typing import Any

from .. import events as ev
from ..events import Event
from ..state import State
from ..values import lookup, merge_patch, pointer_tokens


def change_vars(state: State, change: ev.VarsChange | None) -> None:
    if change is None or state.content is None:
        return
    merged: Any = merge_patch(state.content.vars, change.merge)
    for key, items in change.append.items():
        before = merged.get(key)
        merged = merged | {key: [*before, *items] if isinstance(before, list) else list(items)}
    state.content.vars = merged


def vars_changed(state: State, data: ev.VarsChanged, event: Event) -> None:
    change_vars(state, data.change)


def vars_migrated(state: State, data: ev.VarsMigrated, event: Event) -> None:
    state.control.agent_version = state.control.vars_version = data.to_version
    change_vars(state, ev.VarsChange(merge=data.patch))


def state_patched(state: State, data: ev.StatePatched, event: Event) -> None:
    for step in data.patch:
        if step.path and not step.path.startswith("/"):
            continue  # no pointer; `check` refuses it, and a fold never raises
        tokens = pointer_tokens(step.path)
        if state.control.reducer == "merge":
            state.value = patched(state.value, tokens, step)
        elif state.content is not None and tokens[:1] == ["vars"]:
            root = patched(state.content.vars, tokens[1:], step)
            state.content.vars = root if isinstance(root, dict) else state.content.vars
        elif state.content is not None and tokens[:1] == ["input"]:
            state.content.input = patched(state.content.input, tokens[1:], step)


def patched(value: Any, tokens: list[str], step: ev.PatchStep) -> Any:
    """`value` with one step of a JSON patch done; a path that leads nowhere changes nothing."""
    if not tokens:
        return None if step.op == "remove" else step.value
    head, rest = tokens[0], tokens[1:]
    if isinstance(value, dict):
        if rest:
            return value | {head: patched(value[head], rest, step)} if head in value else value
        if step.op == "remove":
            return {key: item for key, item in value.items() if key != head}
        return value if step.op == "replace" and head not in value else value | {head: step.value}
    if isinstance(value, list):
        if not rest and step.op == "add" and (head == "-" or head == str(len(value))):
            return [*value, step.value]
        try:
            lookup(value, [head])
        except LookupError:
            return value
        at = int(head)
        if rest:
            return [*value[:at], patched(value[at], rest, step), *value[at + 1 :]]
        middle = [] if step.op == "remove" else [step.value]
        return [*value[:at], *middle, *value[at + (step.op != "add") :]]
    return value
