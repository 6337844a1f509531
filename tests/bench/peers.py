"""The durable step of others, in the same run: `python peers.py FOLDER STEPS` under their Python.

Prints JSON: milliseconds by name, or the reason why one is missing. Imports nothing of ours.
"""

from __future__ import annotations

import importlib
import itertools
import json
import operator
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

__all__: list[str] = []

TEXT = "x" * 280


class _Messages(TypedDict):
    messages: Annotated[list[Any], operator.add]


def _langgraph(folder: Path, steps: int) -> float:
    """LangGraph with SqliteSaver, one node in a loop, durability "sync"."""
    graphs: Any = importlib.import_module("langgraph.graph")
    savers: Any = importlib.import_module("langgraph.checkpoint.sqlite")
    marks: list[float] = []

    def step(_: _Messages) -> dict[str, Any]:
        marks.append(time.perf_counter())
        return {"messages": [{"role": "user", "text": TEXT}]}

    graph = graphs.StateGraph(_Messages)
    graph.add_node("step", step)
    graph.add_edge(graphs.START, "step")
    graph.add_conditional_edges(
        "step",
        lambda state: "step" if len(state["messages"]) < steps else graphs.END,
        ["step", graphs.END],
    )
    connection = sqlite3.connect(folder / "langgraph.db", check_same_thread=False)
    app = graph.compile(checkpointer=savers.SqliteSaver(connection))
    config = {"configurable": {"thread_id": "t"}, "recursion_limit": steps + 10}
    app.invoke({"messages": []}, config, durability="sync")
    connection.close()
    return _between(marks)


def _dbos(folder: Path, steps: int) -> float:
    """DBOS on SQLite, a workflow of steps."""
    dbos: Any = importlib.import_module("dbos").DBOS
    marks: list[float] = []
    url = f"sqlite:///{folder / 'dbos.db'}"
    dbos(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})

    @dbos.step()  # type: ignore[untyped-decorator]
    def step(_: int) -> dict[str, str]:
        marks.append(time.perf_counter())
        return {"role": "user", "text": TEXT}

    @dbos.workflow()  # type: ignore[untyped-decorator]
    def run(count: int) -> int:
        return sum(len(step(at)) for at in range(count))

    dbos.launch()
    run(steps)
    dbos.destroy()
    return _between(marks)


def _between(marks: list[float]) -> float:
    """Median milliseconds from one step's entry to the next."""
    return statistics.median(after - before for before, after in itertools.pairwise(marks)) * 1000


PEERS: dict[str, Callable[[Path, int], float]] = {
    "LangGraph, SqliteSaver": _langgraph,
    "DBOS, SQLite": _dbos,
}


def main(folder: str, steps: str) -> None:
    found: dict[str, float | str] = {}
    for name, measure in PEERS.items():
        try:
            found[name] = measure(Path(folder), int(steps))
        except ImportError as error:
            found[name] = f"not installed: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
