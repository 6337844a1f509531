"""The garbage collector's part in starts and folds: none.

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
    again for garbage that is not there, for a quarter of the time of a start over 10,000 runs.

    For all threads; whoever turned it off turns it on, so that it is on when nobody is inside.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
