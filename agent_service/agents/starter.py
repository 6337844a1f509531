"""Your first agent: it searches, drafts a mail, and sends it once a person has approved.

    cp agent_service/agents/starter.py agent_service/agents/mine.py

Then change what stands under "the real call goes here". It runs without any network as it is; its
test is tests/unit/agents/test_starter.py, copy that too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stillrun import Agent, Approval, Call, Context, Reply, Turn, tool

# --- tools: a docstring is what a model reads, annotations are what its arguments are checked by

PAGES = {
    "tea": "Tea keeps best in a closed tin, away from light.",
    "rain": "It rains less in September than in March.",
}
OUTBOX: dict[str, dict[str, str]] = {}


@tool(timeout_s=20)
def search(ctx: Context, query: str) -> list[str]:
    """Find what is known about a subject."""
    # The real call goes here, for instance:
    #   requests.get("https://search.example/api", params={"q": query}, timeout=ctx.time_left_s())
    return [text for word, text in PAGES.items() if word in query.lower()]


@tool
def draft(ctx: Context, to: str, facts: list[str]) -> dict[str, str]:
    """Write a mail from what was found."""
    return {"to": to, "subject": "What I found", "body": " ".join(facts) or "Nothing, I am sorry."}


@tool(
    effect="write",
    timeout_s=60,
    approve=Approval("Send to {to}: {subject}\n\n{body}", edit=["subject", "body"]),
)
def send(ctx: Context, to: str, subject: str, body: str) -> dict[str, str]:
    """Send the mail. A person sees it first, and may change it."""
    # The real call goes here. Send `ctx.key` along as the provider's idempotency key: it is the
    # same on every attempt. A secret comes from a file: ctx.secret("MAIL_TOKEN"). Raise NotDone
    # only where you know that nothing was sent; any other exception is a doubt.
    #
    # When the service dies in here, nobody knows whether the mail has left, and a person is asked
    # (on_doubt="ask", the default). If your provider can be asked by key, say on_doubt="reconcile"
    # and add a hook: @send.reconcile, as in concierge.py.
    return OUTBOX.setdefault(ctx.key, {"to": to, "subject": subject, "body": body})


# --- who decides: this script until MODEL_URL and MODEL_NAME name a model, then the model


@dataclass(frozen=True)
class Task:
    """What a run of this agent is started with."""

    about: str
    to: str


def script(turn: Turn) -> Reply | list[Reply]:
    """What a model might say next: a function of the input and the messages alone."""
    task: dict[str, Any] = turn.input
    if not turn.answers("search"):
        return Reply("Let me look.", [Call("search", {"query": task["about"]})])
    if not turn.answers("draft"):
        (facts, *_) = turn.results("search") or [[]]
        return Reply(None, [Call("draft", {"to": task["to"], "facts": facts})])
    if not turn.answers("send"):
        (mail, *_) = turn.results("draft")
        return Reply("May I send this?", [Call("send", mail)])
    sent = turn.results("send")
    return Reply({"sent": sent[0] if sent else None})


agent = Agent(
    Path(__file__).stem,  # the name of the file, so that a copy has a name of its own
    instructions="Find out what is asked, draft a mail about it, and send it.",
    tools=[search, draft, send],
    max_steps=20,
    offline=script,
    input_schema=Task,
)
