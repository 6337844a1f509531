"""The shipped concierge with its safety removed: it books without a key and denies it afterwards.

A positive control: the twin harness must find what this one does.
"""

from __future__ import annotations

from typing import Any

import requests

from crash.shipped import concierge, with_book
from stillrun import Context, DidNotHappen, tool


@tool(effect="write", on_doubt="reconcile", timeout_s=30, approve=concierge.book.approve)
def book(ctx: Context, route: str, carrier: str, seat: str, price: int | float) -> dict[str, Any]:
    """Book a seat, and keep no key to find it by."""
    body = {"run": ctx.run, "route": route, "carrier": carrier, "seat": seat, "price": price}
    answer = requests.post(f"{concierge.WORLD_URL}/bookings", json=body, timeout=ctx.time_left_s())
    answer.raise_for_status()
    booked: dict[str, Any] = answer.json()
    return booked


@book.reconcile
def deny(ctx: Context, route: str, carrier: str, seat: str, price: int | float) -> DidNotHappen:
    return DidNotHappen()


agent = with_book(book)
