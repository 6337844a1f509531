"""The shipped agent: plans a trip, asks a person about the price, books, sends a confirmation.

It is written with `stillrun` and `requests` alone, as yours would be. Its world is tests/world: a
service with fares, seats, a booking desk and a mail box that know idempotency keys.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import dataclass
from typing import Any

import requests

from stillrun import (
    Agent,
    Approval,
    Call,
    Context,
    DidNotHappen,
    Happened,
    NotDone,
    Reply,
    Turn,
    Unknown,
    tool,
)

WORLD_URL = os.environ.get("WORLD_URL", "http://127.0.0.1:8102").rstrip("/")
TWO_DAYS_S = 172_800


# --- reading


@tool(timeout_s=20)
def carriers(ctx: Context, route: str) -> list[str]:
    """Who flies a route."""
    found: list[str] = read(ctx, f"/routes/{route}").get("carriers", [])
    return found


@tool(timeout_s=20)
def fare(ctx: Context, route: str, carrier: str) -> dict[str, Any]:
    """Today's fare of a carrier in euros; the price is null where it sells none."""
    found = read(ctx, f"/fares/{route}", carrier=carrier)
    return {"route": route, "carrier": carrier, "price": found.get("price")}


@tool(timeout_s=20)
def seats(ctx: Context, route: str, carrier: str) -> dict[str, Any]:
    """The free seats of a flight, front to back."""
    free = read(ctx, f"/seats/{route}", carrier=carrier).get("seats", [])
    return {"route": route, "carrier": carrier, "free": [each["seat"] for each in free]}


def read(ctx: Context, path: str, **query: str) -> dict[str, Any]:
    """GET from the world. A read leaves nothing behind, so whatever goes wrong: read again."""
    try:
        response = requests.get(WORLD_URL + path, params=query, timeout=ctx.time_left_s())
    except requests.RequestException as error:
        raise NotDone(f"the world does not answer: {error}", retry_in_s=pause_s(ctx)) from error
    if response.status_code >= 500:
        raise NotDone(f"the world says {response.status_code}", retry_in_s=pause_s(ctx))
    if response.status_code == 404:
        return {}
    if response.status_code >= 400:
        raise NotDone(f"the world refuses: {response.text[:200]}")
    found: dict[str, Any] = response.json()
    return found


# --- writing: each write sends its key, and the desk does nothing twice for one key


@tool(effect="write", on_doubt="retry", timeout_s=30)
def hold(ctx: Context, route: str, carrier: str, seat: str) -> dict[str, Any]:
    """Hold a seat. In doubt it is simply asked again: the desk honours the key."""
    return write(ctx, "/holds", route=route, carrier=carrier, seat=seat)


@tool(
    effect="write",
    on_doubt="reconcile",
    timeout_s=90,  # the demo's desk holds its answer for a minute, for a person who kills by hand
    approve=Approval(
        "Book {route} with {carrier} for {price}",
        edit=["price"],
        deadline_s=TWO_DAYS_S,
        default="reject",
    ),
)
def book(ctx: Context, route: str, carrier: str, seat: str, price: int | float) -> dict[str, Any]:
    """Book a seat. A person approves the price first."""
    answer = write(ctx, "/bookings", route=route, carrier=carrier, seat=seat, price=price)
    if answer.pop("crash", False):
        die_if_armed(ctx)
    return answer


@book.reconcile
def find_booking(
    ctx: Context, route: str, carrier: str, seat: str, price: int | float
) -> Happened | DidNotHappen | Unknown:
    return look_up(ctx, "/bookings")


@tool(effect="write", on_doubt="reconcile", timeout_s=30)
def mail(ctx: Context, to: str, subject: str, body: str) -> dict[str, Any]:
    """Send a mail."""
    return write(ctx, "/mails", to=to, subject=subject, body=body)


@mail.reconcile
def find_mail(ctx: Context, to: str, subject: str, body: str) -> Happened | DidNotHappen | Unknown:
    return look_up(ctx, "/mails")


def write(ctx: Context, path: str, **body: Any) -> dict[str, Any]:
    """POST to the world under the effect's key.

    NotDone is raised only where the desk says so; every other trouble (a lost answer, a timeout, an
    unclear refusal) leaves as it came and becomes a doubt.
    """
    response = requests.post(
        WORLD_URL + path,
        json={"run": ctx.run, **body},
        headers={"Idempotency-Key": ctx.key},
        timeout=ctx.time_left_s(),
    )
    if response.status_code in (400, 422, 503):
        code = response.json().get("code")
        if code == "not_done":
            raise NotDone("the desk did nothing", retry_in_s=pause_s(ctx))
        if code in ("malformed_body", "invalid_body", "invalid_parameter"):
            raise NotDone(f"the desk refuses: {response.text[:200]}")
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer


def look_up(ctx: Context, path: str) -> Happened | DidNotHappen | Unknown:
    """Ask the desk for the key. Of this desk "no such key" is final; most providers' indexes lag,
    and then it would have to be Unknown."""
    try:
        response = requests.get(f"{WORLD_URL}{path}/by-key/{ctx.key}", timeout=ctx.time_left_s())
    except requests.RequestException:
        return Unknown()
    if response.status_code == 200:
        return Happened(response.json())
    if response.status_code == 404 and response.json().get("code") == "no_such_key":
        return DidNotHappen()
    return Unknown()


def pause_s(ctx: Context) -> float:
    """Longer with each attempt, so that a tired world can recover."""
    return min(0.1 * 2.0 ** min(ctx.attempt, 10), 10.0)


def die_if_armed(ctx: Context) -> None:
    """For the demo: die at the worst moment, the desk has booked and nobody has written it down.

    Only with DEMO_FAULTS=1, which compose.yaml alone sets, and only when the desk's answer asks.
    """
    if os.environ.get("DEMO_FAULTS") != "1":
        return
    ctx.log.warning("killing this service: the desk has answered, the answer is not yet written")
    # The service runs in a child process; its master must go too, or it would end in good order.
    master = multiprocessing.parent_process()
    if master is not None and master.pid is not None:
        os.kill(master.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


# --- thinking: candidate replies for the offline model, which picks among them by the run's seed


@dataclass(frozen=True)
class Trip:
    """What a run of this agent is started with; `budget` in euros."""

    route: str
    budget: int | float
    to: str = "traveller@example.com"


def script(turn: Turn) -> Reply | list[Reply]:
    """What a sensible model might say next: a function of the input and the messages alone."""
    route, budget = turn.input["route"], turn.input["budget"]
    flights = turn.results("carriers")
    if not flights:
        if turn.answers("carriers"):
            return nothing(f"who flies {route} cannot be read")
        return Reply(f"Who flies {route}?", [Call("carriers", {"route": route})])

    if not turn.answers("fare"):
        asked = [Call("fare", {"route": route, "carrier": each}) for each in flights[0]]
        return Reply("What do they ask?", asked) if asked else nothing(f"nobody flies {route}")

    if not turn.answers("seats"):
        fares = [each for each in turn.results("fare") if each["price"] is not None]
        fits = [each for each in fares if each["price"] <= budget]
        if not fits:
            return nothing(f"nothing to {route} within {budget}")
        return [
            Reply(
                f"{each['carrier']} for {each['price']} is within {budget}.",
                [Call("seats", {"route": route, "carrier": each["carrier"]})],
            )
            for each in fits
        ]

    chosen = turn.answers("seats")[0]["args"]["carrier"]
    price = next(each["price"] for each in turn.results("fare") if each["carrier"] == chosen)
    flight = {"route": route, "carrier": chosen}
    if not turn.answers("hold"):
        free = turn.results("seats")[0]["free"] if turn.results("seats") else []
        if not free:
            return nothing(f"{chosen} has no free seat", carrier=chosen)
        return [Reply(f"{seat} it is.", [Call("hold", flight | {"seat": seat})]) for seat in free]

    if not turn.results("hold"):
        return nothing("the seat could not be held", carrier=chosen)
    seat = turn.answers("hold")[0]["args"]["seat"]
    if not turn.answers("book"):
        return Reply(None, [Call("book", flight | {"seat": seat, "price": price})])

    (answer, *_) = turn.answers("book")
    if answer["outcome"] != "succeeded":
        why = "not approved" if answer["outcome"] == "rejected" else "the desk did not book"
        return nothing(why, carrier=chosen)
    booking, paid = answer["content"]["booking"], answer["args"]["price"]
    if not turn.answers("mail"):
        text = f"Booking {booking}: {route} with {chosen}, seat {seat}, {paid} euros."
        to = turn.input.get("to", Trip.to)
        said = {"to": to, "subject": f"Your trip {route}", "body": text}
        return Reply("Booked.", [Call("mail", said), Call("seats", flight)])

    mails = turn.results("mail")
    sent = mails[0]["mail"] if mails else None
    return Reply({"booking": booking, "price": paid, "carrier": chosen, "seat": seat, "mail": sent})


def nothing(reason: str, **more: Any) -> Reply:
    """The polite end without a booking."""
    return Reply({"booking": None, "reason": reason, **more})


agent = Agent(
    "concierge",
    version=1,
    instructions="Plan the trip within the budget. Hold a seat, book it, confirm by mail.",
    tools=[carriers, fare, seats, hold, book, mail],
    max_steps=40,
    offline=script,
    input_schema=Trip,
)
