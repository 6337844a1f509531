"""Order fulfilment: pay, then ship, then notify. Code decides, there is no model.

Its shop is a folder (ORDERS_DIR): one file per key is one thing done, so that a call that is
repeated under its key does nothing twice, and the hook can ask what became of it. A real payment
provider and carrier do the same behind an Idempotency-Key header. Without ORDERS_DIR the shop is a
folder for temporary files: good for a look, but it forgets when the container goes.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stillrun import (
    Agent,
    Approval,
    Call,
    Command,
    Context,
    DidNotHappen,
    Fail,
    Happened,
    NotDone,
    ReadState,
    Succeed,
    tool,
)

LARGE = 500  # euros from which a person looks at a payment first
STOCK = {"book": 12, "lamp": 40, "desk": 620}  # article -> price in euros


# --- the shop: replace these two functions by calls of your provider


def once(ctx: Context, kind: str, **what: Any) -> dict[str, Any]:
    """Do a thing under the call's key, or answer what was done under it before."""
    done = {"id": f"{kind}-{ctx.effect}", **what}
    place = shop() / f"{kind}-{ctx.key}.json"
    with tempfile.NamedTemporaryFile("w", dir=shop(), delete=False) as file:
        json.dump(done, file)
    try:
        # A link is made whole or not at all, and fails where the key has been used before.
        os.link(file.name, place)
    except FileExistsError:
        done = json.loads(place.read_text())
    finally:
        os.unlink(file.name)
    return done


def what_was_done(ctx: Context, kind: str) -> Happened | DidNotHappen:
    """A folder knows for sure; an index that lags would have to answer Unknown."""
    with contextlib.suppress(FileNotFoundError):
        return Happened(json.loads((shop() / f"{kind}-{ctx.key}.json").read_text()))
    return DidNotHappen()


def shop() -> Path:
    folder = Path(os.environ.get("ORDERS_DIR") or Path(tempfile.gettempdir()) / "stillrun-orders")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# --- tools


@tool
def price(ctx: Context, article: str, count: int) -> int:
    """What an order costs, in euros."""
    if article not in STOCK:
        raise NotDone(f"no article {article!r}")
    return STOCK[article] * count


def large_ones(args: dict[str, Any]) -> Approval | None:
    """A person looks at large payments only."""
    if args["amount"] < LARGE:
        return None
    return Approval("Charge {customer} {amount} euros?", deadline_s=86_400, default="reject")


@tool(effect="write", on_doubt="reconcile", timeout_s=30, approve=large_ones)
def pay(ctx: Context, customer: str, amount: int) -> dict[str, Any]:
    """Charge the customer."""
    return once(ctx, "payment", customer=customer, amount=amount)


@pay.reconcile
def find_payment(ctx: Context, customer: str, amount: int) -> Happened | DidNotHappen:
    return what_was_done(ctx, "payment")


@tool(effect="write", on_doubt="reconcile", timeout_s=30)
def ship(ctx: Context, article: str, count: int, address: str) -> dict[str, Any]:
    """Hand the parcel to the carrier."""
    return once(ctx, "parcel", article=article, count=count, address=address)


@ship.reconcile
def find_parcel(ctx: Context, article: str, count: int, address: str) -> Happened | DidNotHappen:
    return what_was_done(ctx, "parcel")


@tool(effect="write", on_doubt="retry", timeout_s=30)
def notify(ctx: Context, customer: str, parcel: str) -> dict[str, Any]:
    """Tell the customer. In doubt it is simply sent again: the mailer honours the key."""
    return once(ctx, "note", customer=customer, parcel=parcel)


# --- deciding


@dataclass(frozen=True)
class Order:
    """What a run of this agent is started with."""

    customer: str
    article: str
    count: int
    address: str


agent = Agent("orders", tools=[price, pay, ship, notify], input_schema=Order)


@agent.decide
def next_step(state: ReadState) -> Command:
    """The next call that has no answer yet; a function of the state alone."""
    order = state.input
    answers = {m["name"]: m for m in state.messages if m["role"] == "tool"}
    failed = next((m for m in answers.values() if m["outcome"] != "succeeded"), None)
    if failed is not None and failed["name"] != "notify":
        return Fail(f"{failed['name']}: {failed['outcome']}")
    if "price" not in answers:
        return Call("price", {"article": order["article"], "count": order["count"]})
    amount = answers["price"]["content"]
    if "pay" not in answers:
        return Call("pay", {"customer": order["customer"], "amount": amount})
    if "ship" not in answers:
        parcel = {name: order[name] for name in ("article", "count", "address")}
        return Call("ship", parcel)
    parcel_id = answers["ship"]["content"]["id"]
    if "notify" not in answers:
        return Call("notify", {"customer": order["customer"], "parcel": parcel_id})
    payment = answers["pay"]["content"]
    return Succeed({"paid": amount, "payment": payment["id"], "parcel": parcel_id})
