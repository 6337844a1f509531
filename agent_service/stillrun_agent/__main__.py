"""Serves the agent: `python -m stillrun_agent`, by flags or the variables that compose sets.

Always: the worker lives in the one process that serves HTTP. A killed parent takes it along
(`die_with_parent`), so its lease ends by itself. SIGTERM drains: calls in flight may finish and are
recorded, leases are released, the process ends with 0; a planned stop creates no doubt.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from granian.constants import Interfaces
from granian.log import LogLevels
from granian.server.mp import MPServer

from stillrun.client import StoreClient
from stillrun.process import die_with_parent, on_stop

from .app import create_app
from .config import BadSetting, Config
from .metrics import Metrics
from .models import Endpoint, ModelFactory
from .registry import Registry
from .secrets import RedactSecrets, Secrets
from .worker import Worker

BLOCKING_THREADS = 64  # routes.MAX_WAITING of them may be kept waiting
KILL_MARGIN_S = 5  # after drain and release, which takes a lease's length at most
SETTINGS = (
    "STORE_URL AGENT_LISTEN AGENT_MODULES AGENT_WORKERS LEASE_TTL_S DRAIN_S SECRETS_DIR "
    "ALLOWED_HOSTS MODEL_URL MODEL_API MODEL_NAME MODEL_KEY_FILE MODEL_TIMEOUT_S LOG_LEVEL"
).split()

_log = logging.getLogger("stillrun.agent")


def main() -> None:
    """Read the settings, then serve until SIGTERM or SIGINT."""
    try:
        config = Config.from_env(_settings(sys.argv[1:], os.environ))
    except BadSetting as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    server = MPServer(
        "stillrun_agent",
        address=config.host,
        port=config.port,
        interface=Interfaces.WSGI,
        websockets=False,
        workers=1,
        blocking_threads=BLOCKING_THREADS,
        workers_kill_timeout=math.ceil(config.drain_s + config.lease_ttl_s) + KILL_MARGIN_S,
        log_level=LogLevels.error,
    )
    server.serve(spawn_target=partial(serve, config), target_loader=_unused, wrap_loader=False)


def _settings(arguments: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """The variables, with those that a flag replaces: --agent-listen for AGENT_LISTEN."""
    parser = argparse.ArgumentParser(prog="python -m stillrun_agent", description=__doc__)
    for name in SETTINGS:
        parser.add_argument(f"--{name.lower().replace('_', '-')}", dest=name, metavar="VALUE")
    given = vars(parser.parse_args(arguments))
    return {**env, **{name: value for name, value in given.items() if value is not None}}


def _unused() -> Any:
    raise AssertionError("`serve` makes the application")


def serve(config: Config, worker_id: int, process_name: str, _loader: object, *rest: Any) -> None:
    """In granian's child process: the application and the worker, until a signal ends both."""
    die_with_parent()
    _until_granian_listens(lambda: os._exit(0))  # nothing has begun, and no file may catch it
    logging.basicConfig(
        level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    secrets = Secrets(config.secrets_dir)
    for handler in logging.getLogger().handlers:
        handler.addFilter(RedactSecrets(secrets))
    for setting in fields(config):
        _log.debug("%s = %s", setting.name, getattr(config, setting.name))
    registry = Registry.load(config.modules, hide=secrets.redacted)
    models = _models(config)
    models.give_default(filter(None, map(registry.get, registry.names())))
    client = StoreClient(config.store_url)
    # The routes answer people: they give up long before the worker does. They know the store that
    # the worker knows: a run that is started in another one would never be worked on.
    store = StoreClient(
        config.store_url,
        same_store_as=client,
        timeout_s=5.0,
        connect_timeout_s=1.0,
        retry_for_s=10.0,
    )
    worker = Worker(
        client,
        registry,
        name=platform.node() or "agent",
        concurrency=config.workers,
        lease_ttl_s=config.lease_ttl_s,
        drain_s=config.drain_s,
        secrets_dir=config.secrets_dir,
        models=models,
    )
    stop, draining = threading.Event(), threading.Lock()
    app = create_app(
        config,
        registry=registry,
        store=store,
        is_ready=worker.is_ready,
        stop=stop,
        metrics=Metrics(worker),
    )

    def drain() -> None:
        with draining:  # the second to come waits for the first
            if not stop.is_set():
                _log.info("stopping: calls in flight may take up to %g s", config.drain_s)
                stop.set()
                worker.drain()
                worker.stop()
                _log.info("stopped")

    on_stop(drain)
    _until_granian_listens(lambda: sys.exit(0))
    try:
        worker.start()
        where = f"http://{config.host}:{config.port}, store {config.store_url}"
        _log.info("%d agents on %s", len(registry.names()), where)
        if config.demo_faults:
            _log.warning("DEMO_FAULTS=1: a shipped tool may kill this service if the desk asks")
        MPServer._spawn_wsgi_worker(worker_id, process_name, lambda: app, *rest)
    finally:
        # The main thread may hear of the signal before `on_stop` does, and end the process.
        drain()


def _models(config: Config) -> ModelFactory:
    endpoint = None
    if config.model_url is not None:
        endpoint = Endpoint(
            config.model_url, key_file=config.model_key_file, timeout_s=config.model_timeout_s
        )
    return ModelFactory(endpoint, api=config.model_api, default=config.model_name)


def _until_granian_listens(end: Callable[[], object]) -> None:
    """How a signal ends us before granian has set its handlers: the parent's are in force here."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end())


if __name__ == "__main__":
    main()
