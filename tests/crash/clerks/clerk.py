"""A clerk: holds a seat, confirms by mail; small, by code, each write with its key.

It looks at the seats inside the call that holds one: a worker can be frozen between the check of
its lease and the request that it sends, and this is where a test can freeze it.
"""

from __future__ import annotations

import os
from typing import Any

import requests

from stillrun import (
    Agent,
    Call,
    Command,
    Context,
    DidNotHappen,
    Happened,
    NotDone,
    ReadState,
    Succeed,
    Unknown,
    tool,
)

WORLD_URL = os.environ.get("WORLD_URL", "http://127.0.0.1:8102")
ROUTE = "LIS-OSL"


@tool(effect="write", on_doubt="retry", timeout_s=60)
def hold(ctx: Context, seat: str) -> dict[str, Any]:
    """Hold a seat, if anybody flies."""
    # The world does not look at the carrier; it names the run to whoever watches the wire.
    query = {"carrier": ctx.run}
    try:
        requests.get(f"{WORLD_URL}/seats/{ROUTE}", params=query, timeout=ctx.time_left_s())
    except requests.RequestException as error:
        raise NotDone("the seats cannot be read", retry_in_s=0.1) from error
    return write(ctx, "/holds", route=ROUTE, carrier=ctx.run, seat=seat)


@tool(effect="write", on_doubt="reconcile", timeout_s=60)
def mail(ctx: Context, to: str) -> dict[str, Any]:
    """Confirm by mail."""
    return write(ctx, "/mails", to=to, subject="held", body="Your seat is held.")


@mail.reconcile
def find_mail(ctx: Context, to: str) -> Happened | DidNotHappen | Unknown:
    found = requests.get(f"{WORLD_URL}/mails/by-key/{ctx.key}", timeout=ctx.time_left_s())
    if found.status_code == 200:
        return Happened(found.json())
    if found.status_code == 404 and found.json().get("code") == "no_such_key":
        return DidNotHappen()
    return Unknown()


def write(ctx: Context, path: str, **body: str) -> dict[str, Any]:
    answer = requests.post(
        WORLD_URL + path,
        json={"run": ctx.run, **body},
        headers={"Idempotency-Key": ctx.key},
        timeout=ctx.time_left_s(),
    )
    answer.raise_for_status()
    done: dict[str, Any] = answer.json()
    return done


agent = Agent("clerk", tools=[hold, mail])


@agent.decide
def next_step(state: ReadState) -> Command:
    done = {m["name"]: m["content"] for m in state.messages if m["role"] == "tool"}
    if "hold" not in done:
        return Call("hold", {"seat": state.input["seat"]})
    if "mail" not in done:
        return Call("mail", {"to": state.input["to"]})
    return Succeed({"hold": done["hold"]["hold"], "mail": done["mail"]["mail"]})
