"""`python -m stillrun_store`: serve one data directory over HTTP, by flags or variables.

With a word before the flags, one of `commands`, or `serve` for the same.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from granian.constants import Interfaces
from granian.log import LogLevels
from granian.server.mp import MPServer

from stillrun.process import allow_open_files

from .commands import backup, dump, restore, scrub, sweep
from .config import BadSetting, Config
from .routes.limits import THREADS
from .serve import serve

STOP_S = 5  # after that the server process is killed; what was answered is on the disk anyway
COMMANDS = {
    "backup": backup,
    "dump": dump,
    "restore": restore,
    "scrub": scrub,
    "sweep": sweep,
}
# Connections beyond these wait to be accepted. A quarter of the open files is for them and half for
# the logs, whatever the machine allows: so neither takes what the other, or a snapshot, needs.
MAX_CONNECTIONS = 1_024
OPEN_FILES = 4 * MAX_CONNECTIONS
SETTINGS = (
    "STORE_DATA",
    "STORE_LISTEN",
    "ALLOWED_HOSTS",
    "STORAGE_MODEL",
    "SNAPSHOT_EVERY",
    "SCRUB_BYTES_PER_S",
    "SCRUB_PAUSE_S",
    "LOG_LEVEL",
)


def main() -> None:
    """Do what the first argument says; without one, serve."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in COMMANDS:
        sys.exit(_command(*arguments))
    _serve(arguments[1:] if arguments[:1] == ["serve"] else arguments)


def _command(name: str, *arguments: str) -> int:
    """One of COMMANDS; its exit code."""
    # What the engine logs as news of a start is told by the command itself.
    logging.basicConfig(level=logging.CRITICAL)
    command = COMMANDS[name]
    parser = argparse.ArgumentParser(
        prog=f"python -m stillrun_store {name}", description=command.__doc__
    )
    command.add_arguments(parser)
    try:
        code: int = command.run(parser.parse_args(arguments))
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough; the flush at exit would fail once more
        os._exit(1)
    return code


def _serve(arguments: Sequence[str]) -> None:
    """Read the settings, then serve until SIGTERM or SIGINT."""
    try:
        config = Config.from_env(_settings(arguments, os.environ))
    except BadSetting as error:
        sys.stderr.write(f"stillrun-store cannot start: {error}\n")
        sys.exit(2)
    open_files = allow_open_files(OPEN_FILES)
    server = MPServer(
        "stillrun_store",
        address=config.host,
        port=config.port,
        interface=Interfaces.WSGI,
        websockets=False,
        workers=1,
        blocking_threads=THREADS,
        backpressure=min(MAX_CONNECTIONS, open_files // 4),
        workers_kill_timeout=STOP_S,
        log_level=LogLevels.error,
    )
    # Our own code around granian's: what must be opened before and closed after serving.
    target = partial(serve, config, MPServer._spawn_wsgi_worker)
    server.serve(spawn_target=target, target_loader=_unused, wrap_loader=False)


def _settings(arguments: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """The variables, with those that a flag replaces: --store-data for STORE_DATA."""
    parser = argparse.ArgumentParser(prog="python -m stillrun_store [serve]", description=__doc__)
    for name in SETTINGS:
        parser.add_argument(f"--{name.lower().replace('_', '-')}", dest=name, metavar="VALUE")
    given = vars(parser.parse_args(arguments))
    return {**env, **{name: value for name, value in given.items() if value is not None}}


def _unused() -> Any:
    raise AssertionError("`serve` makes the application")


if __name__ == "__main__":
    main()
