"""The garbage collector's part in a start: none.

Always: it is on again afterwards if it was on before, whatever happened.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["uncollected"]


@contextmanager
def uncollected() -> Iterator[None]:
    """Around the making of many objects that all stay: else each of them is visited again and
    again for garbage that is not there."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
