"""The shipped concierge where nobody but a person can tell whether a booking was made."""

from __future__ import annotations

from crash.shipped import concierge, with_book
from stillrun import tool

book = tool(effect="write", timeout_s=30, approve=concierge.book.approve)(concierge.book.fn)
agent = with_book(book)
