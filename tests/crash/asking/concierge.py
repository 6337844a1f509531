"""The shipped concierge where nobody but a person can tell whether a booking was made."""

from __future__ import annotations

from stillrun import tool

from crash.shipped import concierge, with_book

book = tool(effect="write", timeout_s=30, approve=concierge.book.approve)(concierge.book.fn)
agent = with_book(book)
