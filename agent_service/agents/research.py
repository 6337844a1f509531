"""A research assistant over local files: it lists, searches and reads, and changes nothing.

The files are those under RESEARCH_DIR; nothing outside of that folder can be named. Without a
model it follows a script that answers with the lines that mention the question's words.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stillrun import Agent, Call, Context, NotDone, Reply, Turn, tool

MAX_FILES = 500  # a longer list would not be read by anyone
MAX_HITS = 50
MAX_CHARS = 20_000  # of a file per call: a model's context has an end
MAX_BYTES = 5 << 20  # a larger file is no text to search


# --- tools


@tool(name="list")
def list_files(ctx: Context, folder: str = ".") -> list[str]:
    """The names of the text files under a folder, relative to the top."""
    top = inside(folder)
    if not top.is_dir():
        raise NotDone(f"{folder!r} is no folder")
    return [name_of(path) for path in files_under(top)[:MAX_FILES]]


@tool
def search(ctx: Context, words: str) -> list[dict[str, Any]]:
    """The lines in which all of the words stand: file, line number and text."""
    wanted = words.lower().split()
    hits = []
    for path in files_under(inside(".")):
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if wanted and all(word in line.lower() for word in wanted):
                hits.append({"file": name_of(path), "line": number, "text": line.strip()[:500]})
                if len(hits) == MAX_HITS:
                    return hits
    return hits


@tool
def read(ctx: Context, file: str, offset: int = 0) -> dict[str, Any]:
    """A part of a file from a character offset on; `next` is where the following part begins."""
    path = inside(file)
    if not path.is_file():
        raise NotDone(f"no file {file!r}")
    text = text_of(path)
    part = text[max(0, offset) : max(0, offset) + MAX_CHARS]
    end = max(0, offset) + len(part)
    return {"file": name_of(path), "text": part, "next": end if end < len(text) else None}


def root() -> Path:
    folder = os.environ.get("RESEARCH_DIR", "")
    if not folder or not Path(folder).is_dir():
        raise NotDone("RESEARCH_DIR names no folder")
    return Path(folder).resolve()


def inside(name: str) -> Path:
    """The path of a name, links followed; NotDone if it leads out of the folder."""
    try:
        path = (root() / name).resolve()
        path.exists()  # too long a name is found out here
    except (OSError, ValueError, RuntimeError) as error:
        raise NotDone(f"{name!r:.200} cannot be a file: {error}") from None
    if not path.is_relative_to(root()):
        raise NotDone(f"{name!r:.200} is outside of the folder")
    return path


def files_under(top: Path) -> list[Path]:
    """Sorted, so that the same folder is always told alike; a link that leads out is left aside."""
    found = (path for path in top.rglob("*") if not path.name.startswith("."))
    return sorted(
        path for path in found if path.is_file() and path.resolve().is_relative_to(root())
    )


def name_of(path: Path) -> str:
    return str(path.relative_to(root()))


def text_of(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.stat().st_size <= MAX_BYTES else ""


# --- thinking


@dataclass(frozen=True)
class Question:
    """What a run of this agent is started with."""

    question: str


def script(turn: Turn) -> Reply | list[Reply]:
    """Search for the question's longest words, read the best file, answer with its lines."""
    if not turn.answers("list"):
        return Reply("What is there?", [Call("list")])
    if not turn.results("list"):
        return Reply({"answer": None, "reason": turn.answers("list")[0]["content"]})
    words = sorted(set(re.findall(r"\w{4,}", turn.input["question"].lower())), key=len)[-5:]
    if words and not turn.answers("search"):
        return Reply("Where is it?", [Call("search", {"words": word}) for word in words])
    hits = [hit for found in turn.results("search") for hit in found]
    if not hits:
        return Reply({"answer": None, "reason": "no file mentions it"})
    count = {hit["file"]: sum(h["file"] == hit["file"] for h in hits) for hit in hits}
    best = max(sorted(count), key=lambda name: count[name])
    if not turn.answers("read"):
        return Reply(f"{best} says most.", [Call("read", {"file": best})])
    lines = sorted({hit["line"]: hit["text"] for hit in hits if hit["file"] == best}.items())
    return Reply({"answer": " ".join(text for _, text in lines), "source": best})


agent = Agent(
    "research",
    instructions="Answer from the files alone, and name the file that your answer is from.",
    tools=[list_files, search, read],
    max_steps=30,
    offline=script,
    input_schema=Question,
)
