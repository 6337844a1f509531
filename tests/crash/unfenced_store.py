"""A store that takes events of any epoch: `python -m crash.unfenced_store`. Only for controls."""

from __future__ import annotations

from typing import Any

import stillrun_store.__main__ as service
from stillrun_store import append
from stillrun_store.serve import serve as serve_fenced


def serve(*args: Any) -> None:
    """In the serving process: the store with the fence taken down."""
    assert callable(append._refuse_epoch)  # else this would take down nothing
    append._refuse_epoch = lambda entry, control, request: None
    serve_fenced(*args)


if __name__ == "__main__":
    service.serve = serve
    service.main()
