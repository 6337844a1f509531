"""An agent with a result too large for an event, so that its worker puts a blob."""

from __future__ import annotations

from stillrun import Agent, Call, Context, Succeed, tool


@tool
def read_book(ctx: Context, title: str) -> str:
    """A text of more than 256 KiB."""
    return title * (300_000 // len(title) + 1)


agent = Agent("librarian", version=1, tools=[read_book])


@agent.decide
def next_step(state):
    books = [message for message in state.messages if message["role"] == "tool"]
    if not books:
        return [Call("read_book", {"title": title}) for title in ("Momo", "Faust")]
    return Succeed([book["content"]["$blob"]["sha256"] for book in books])
