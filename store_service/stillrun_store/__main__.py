"""`python -m stillrun_store`: serve one data directory over HTTP."""

from __future__ import annotations

import os
import sys

from granian import Granian
from granian.constants import Interfaces

from .config import BadSetting, Config
from .routes.limits import THREADS

STOP_S = 5  # after that the server process is killed; by then all answered work is on the disk


def main() -> None:
    try:
        config = Config.from_env(os.environ)
    except BadSetting as error:
        sys.stderr.write(f"stillrun-store cannot start: {error}\n")
        raise SystemExit(2) from None
    Granian(
        "stillrun_store.serve:application",
        factory=True,
        address=config.host,
        port=config.port,
        interface=Interfaces.WSGI,
        workers=1,
        blocking_threads=THREADS,
        workers_kill_timeout=STOP_S,
        log_access=False,
        respawn_failed_workers=False,
    ).serve()


if __name__ == "__main__":
    main()
