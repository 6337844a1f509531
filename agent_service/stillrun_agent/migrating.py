"""An author's `vars` and the version of the code that reads them.

Always: the steps come before anything else that newer code decides, and each is an event; code that
is older than a run's vars does nothing to it; what a step raises pauses the run with its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stillrun import events as ev
from stillrun.agent import Agent
from stillrun.events import Data
from stillrun.signatures import copied, plain_default
from stillrun.state import State
from stillrun.tools import AUTHORS
from stillrun.values import merge_patch, same

from .plan import Pause, told

__all__ = ["migrate"]


def migrate(agent: Agent, state: State) -> list[Data] | Pause:
    """The steps from the run's version to the agent's; empty where there is nothing to do.

    A run that names no version counts as one of version 1. Without migrations a version is a label.
    """
    control = state.control
    version = control.agent_version or 1
    if version > agent.version and (agent.migrations or control.vars_version > agent.version):
        return Pause(
            f"older_agent: the run's vars are of version {version}, this is version "
            f"{agent.version} of {agent.name}; deploy version {version} again, then unpause"
        )
    if version >= agent.version or not agent.migrations:
        return []
    vars: dict[str, Any] = {} if state.content is None else state.content.vars
    steps: list[Data] = []
    for step in range(version, agent.version):
        if step not in agent.migrations:
            return Pause(f"no_migration: {agent.name} has no migration from version {step}")
        migration = agent.migrations[step]
        try:
            answer = migration(copied(vars))
            if not isinstance(answer, dict):
                raise TypeError(f"a migration answers the new vars, not {answer!r:.200}")
            wanted = plain_default(answer, "the new vars")
            patch = _patch(vars, wanted)
            if not same(merge_patch(vars, patch), wanted):
                raise ValueError("null is no value in vars: leave the key out")
        except AUTHORS as error:
            return Pause(f"migration_error: version {step}: {told(error, migration)}")
        steps.append(ev.VarsMigrated(from_version=step, to_version=step + 1, patch=patch))
        vars = wanted
    return steps


def _patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch (RFC 7396) that makes `new` of `old`."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if key in old and same(before, value):
            continue
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        patch[key] = _patch(before, value) if both else value  # type: ignore[arg-type]
    return patch
