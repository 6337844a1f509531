"""A trip like the shipped concierge's, with tools that need no world: parallel calls, a call that
fails and is made again, an approval, a mail. 20 to 40 events.

Always: `performed` has every call that was really made, as (effect, attempt); the output says which
messages the model has read.
"""

from __future__ import annotations

from collections import defaultdict

from stillrun import Agent, Approval, Call, Context, NotDone, Reply, Turn, tool

__all__ = ["CLOSED", "SOON_S", "performed", "tripper"]

CLOSED = ("succeeded", "failed", "cancelled")
SOON_S = 1.0  # a deadline that passes while a test looks on; with less, before it looks
TIRED = 3  # attempts that the desk is too tired for

performed: dict[str, list[tuple[str, int]]] = defaultdict(list)


def note(ctx: Context) -> None:
    performed[ctx.run].append((ctx.effect, ctx.attempt))


@tool
def fare(ctx: Context, carrier: str) -> int:
    """A read."""
    note(ctx)
    return 200 + len(carrier)


@tool(effect="write", on_doubt="retry")
def hold(ctx: Context, seat: str) -> str:
    """A write that is not done at first."""
    note(ctx)
    if ctx.attempt <= TIRED:
        raise NotDone("the desk is tired", retry_in_s=0.0)
    return f"H-{seat}"


@tool(effect="write", on_doubt="retry", approve=Approval("Book for {price}", edit=["price"]))
def book(ctx: Context, price: int) -> str:
    """A write that a person approves."""
    note(ctx)
    return f"B-{price}"


@tool(
    effect="write",
    on_doubt="retry",
    approve=Approval("Book for {price}", deadline_s=SOON_S, default="approve"),
)
def book_soon(ctx: Context, price: int) -> str:
    """The same, and who does not answer in time agrees."""
    note(ctx)
    return f"B-{price}"


@tool(effect="write", on_doubt="retry")
def mail(ctx: Context, text: str) -> str:
    """A write."""
    note(ctx)
    return "M-1"


def script(turn: Turn) -> Reply:
    if not turn.answers("fare"):
        return Reply(
            "What do they ask?", [Call("fare", {"carrier": c}) for c in ("Dune", "Aurora")]
        )
    if not turn.answers("hold"):
        booking = "book_soon" if turn.input.get("soon") else "book"
        calls = [
            Call("hold", {"seat": "1A"}),
            Call(booking, {"price": min(turn.results("fare"))}),
            Call("fare", {"carrier": "Boreal"}),
        ]
        return Reply("Hold and book.", calls)
    if not turn.answers("mail"):
        calls = [Call("mail", {"text": "Booked."}), Call("fare", {"carrier": "Dune"})]
        return Reply("Say so.", calls)
    heard = [message["content"] for message in turn.messages if message["role"] == "user"]
    return Reply({"heard": heard, "mailed": len(turn.results("mail"))})


tripper = Agent("tripper", tools=[fare, hold, book, book_soon, mail], offline=script)
