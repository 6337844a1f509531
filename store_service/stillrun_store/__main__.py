"""`python -m stillrun_store`: serve one data directory over HTTP, by flags or variables."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from granian.constants import Interfaces
from granian.log import LogLevels
from granian.server.mp import MPServer

from .config import BadSetting, Config
from .routes.limits import THREADS
from .serve import serve

STOP_S = 5  # after that the server process is killed; what was answered is on the disk anyway
SETTINGS = ("STORE_DATA", "STORE_LISTEN", "ALLOWED_HOSTS", "SNAPSHOT_EVERY", "LOG_LEVEL")


def main() -> None:
    """Read the settings, then serve until SIGTERM or SIGINT."""
    try:
        config = Config.from_env(_settings(sys.argv[1:], os.environ))
    except BadSetting as error:
        sys.stderr.write(f"stillrun-store cannot start: {error}\n")
        sys.exit(2)
    server = MPServer(
        "stillrun_store",
        address=config.host,
        port=config.port,
        interface=Interfaces.WSGI,
        websockets=False,
        workers=1,
        blocking_threads=THREADS,
        workers_kill_timeout=STOP_S,
        log_level=LogLevels.error,
    )
    # Our own code around granian's: what must be opened before and closed after serving.
    target = partial(serve, config, MPServer._spawn_wsgi_worker)
    server.serve(spawn_target=target, target_loader=_unused, wrap_loader=False)


def _settings(arguments: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """The variables, with those that a flag replaces: --store-data for STORE_DATA."""
    parser = argparse.ArgumentParser(prog="python -m stillrun_store", description=__doc__)
    for name in SETTINGS:
        parser.add_argument(f"--{name.lower().replace('_', '-')}", dest=name, metavar="VALUE")
    given = vars(parser.parse_args(arguments))
    return {**env, **{name: value for name, value in given.items() if value is not None}}


def _unused() -> Any:
    raise AssertionError("`serve` makes the application")


if __name__ == "__main__":
    main()
