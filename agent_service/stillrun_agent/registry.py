"""The agents of one folder: each `*.py` is loaded by itself, once, when the service starts.

Always: a file that fails is named with its line and takes no other file down; of two agents with
one name the first file, by name, wins, and the other is reported.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from stillrun.agent import Agent
from stillrun.tools import AUTHORS

from .tools import Hide, problem_of

__all__ = ["BrokenFile", "Registry"]

_log = logging.getLogger("stillrun.agent")


@dataclass(frozen=True, kw_only=True)
class BrokenFile:
    """Why a file brought no agent: `line` is in that file, None where no line is to blame."""

    file: str
    line: int | None
    error: str

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f', line {self.line}'}: {self.error}"


class Registry:
    """The agents that this service runs, by name, and the files that failed to load."""

    def __init__(self, hide: Hide = str) -> None:
        self._hide = hide
        self.broken: list[BrokenFile] = []
        self._agents: dict[str, Agent] = {}
        self._files: dict[str, str] = {}

    @classmethod
    def load(cls, folder: Path | None, *, hide: Hide = str) -> Registry:
        """The registry of a folder. `hide`: takes secrets out of what a file that fails has raised,
        which everybody may read over HTTP.

        Files that start with `_` are no agents: the others may import them by their plain name, as
        `import _help`, for the folder is on `sys.path` from here on.
        """
        registry = cls(hide)
        if folder is not None and str(folder.resolve()) not in sys.path:
            # Last, so that an agent's file named like a module of a library hides none.
            sys.path.append(str(folder.resolve()))
        for path in sorted(folder.glob("*.py")) if folder is not None else []:
            if not path.name.startswith("_"):
                registry._load_file(path)
        return registry

    @classmethod
    def of(cls, agents: Iterable[Agent]) -> Registry:
        """A registry of agents that are there already; ValueError if two have one name."""
        registry = cls()
        for agent in agents:
            agent.check()
            registry.add(agent)
        return registry

    def add(self, agent: Agent, file: str = "") -> None:
        """Register an agent; ValueError if its name is taken."""
        if agent.name in self._agents:
            raise ValueError(f"agent {agent.name!r} is also in {self._files[agent.name]!r}")
        self._agents[agent.name] = agent
        self._files[agent.name] = file

    def get(self, name: str) -> Agent | None:
        """The agent of that name."""
        return self._agents.get(name)

    def names(self) -> list[str]:
        """The names of all agents, sorted."""
        return sorted(self._agents)

    def file_of(self, name: str) -> str:
        """The file that an agent came from."""
        return self._files[name]

    def _load_file(self, path: Path) -> None:
        try:
            module = _execute(path)
        except AUTHORS as error:
            problem = problem_of(error, self._hide)
            self._report(path, _line_in(path, error), f"{problem.type}: {problem.message}")
            return
        agents = {id(value): value for value in vars(module).values() if isinstance(value, Agent)}
        if not agents:
            self._report(path, None, "it defines no Agent at its top level")
        for agent in agents.values():
            try:
                agent.check()  # the file may have changed its tools since it made the agent
                self.add(agent, path.name)
            except ValueError as error:
                self._report(path, None, str(error))

    def _report(self, path: Path, line: int | None, error: str) -> None:
        self.broken.append(BrokenFile(file=path.name, line=line, error=error))
        _log.error("%s", self.broken[-1])


def _execute(path: Path) -> ModuleType:
    name = f"stillrun_agents.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _line_in(path: Path, error: BaseException) -> int | None:
    """The last line of the file itself that led to the error."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno for f in reversed(frames) if f.filename == str(path)), None)
