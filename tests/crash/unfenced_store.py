"""A store that takes events of any epoch: `python -m crash.unfenced_store`. Only for controls."""

from __future__ import annotations

import os
from typing import Any

from granian import Granian
from granian.constants import Interfaces

from stillrun_store import append, serve
from stillrun_store.config import Config
from stillrun_store.routes.limits import THREADS


def application() -> Any:
    """The store's application with the fence taken down."""
    append._refuse_epoch = lambda entry, control, request: None
    return serve.load()


def main() -> None:
    config = Config.from_env(os.environ)
    Granian(
        "crash.unfenced_store:application",
        factory=True,
        address=config.host,
        port=config.port,
        interface=Interfaces.WSGI,
        workers=1,
        blocking_threads=THREADS,
        workers_kill_timeout=5,
        log_access=False,
    ).serve()


if __name__ == "__main__":
    main()
