"""Containers for tests: what compose.yaml says, under names, a network and volumes of their own.

Always: everything made here carries the label `stillrun-test=<session>`, and only what carries it
is removed; no port is published; a demo that runs on the same engine is never touched.

Pytest may run in a container (the tests service; it joins each network and calls services by name)
or on the engine's host (it calls them by their address on the bridge).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import docker
import requests
import yaml
from docker.errors import APIError, BuildError, DockerException, NotFound
from docker.models.containers import Container

__all__ = ["Engine", "NoEngine", "Stack"]

ROOT = Path(__file__).parents[2]
LABEL = "stillrun-test"
PORTS = {"store": 8100, "agent": 8101, "world": 8102}
READY_S = 30  # a store with an empty volume needs one; a busy machine of two cores several
API_TIMEOUT_S = 180  # longer than the longest stop_grace_period, which one API call waits for
LOG_LINES = 60
MAX_LOG_LINES = 10_000


class NoEngine(Exception):
    """No Docker engine answers; the message says why."""


class Engine:
    """One test session's use of a Docker engine: a label and the images, built once."""

    def __init__(self) -> None:
        try:
            self.client = docker.from_env(timeout=API_TIMEOUT_S)
            self.client.ping()
        except (DockerException, requests.RequestException) as error:
            raise NoEngine(str(error)) from error
        self.session = secrets.token_hex(4)
        self.labels = {LABEL: self.session}
        self.me = self._own_container()
        self._images: dict[str, str] = {}

    def _own_container(self) -> Container | None:
        """The container that pytest runs in, if it is one of this engine's."""
        if Path("/.dockerenv").exists():
            with contextlib.suppress(NotFound):
                return self.client.containers.get(socket.gethostname())
        return None

    def image(self, service: str) -> str:
        """The id of a service's image, built from the tree on its first use in the session."""
        if service not in self._images:
            build = SERVICES[service]["build"]
            try:
                image, _ = self.client.images.build(
                    path=str(ROOT / build["context"]),
                    dockerfile=build["dockerfile"],
                    tag=f"{LABEL}-{service}:{self.session}",
                    labels={LABEL: "image"},
                    rm=True,
                )
            except BuildError as error:
                lines = [step.get("stream", "") for step in error.build_log]
                raise AssertionError(f"{error}\n{''.join(lines[-40:])}") from error
            self._images[service] = image.id
        return self._images[service]

    def build_images(self, *services: str) -> None:
        for service in services or PORTS:
            self.image(service)

    def close(self) -> None:
        """Remove the session's tags; of each image the newest stays, as the next session's cache.

        The engine's classic builder has no other cache: without it each session would install the
        dependencies anew.
        """
        for service in self._images:
            name = f"{LABEL}-{service}"
            self.client.images.get(f"{name}:{self.session}").tag(name, "cache")
            self.client.images.remove(f"{name}:{self.session}")
        for image in self.client.images.list(filters={"dangling": True, "label": f"{LABEL}=image"}):
            with contextlib.suppress(APIError):  # another session's containers still use it
                self.client.images.remove(image.id)
        self.client.close()


class Stack:
    """A store, agents and a world on a network of their own; removed at the end, volumes included.

    Containers are called `store`, `agent-1`, `agent-2`, …, `world`, in every method and among
    each other. Pytest calls them by longer names: in a container of its own it is on the networks
    of all stacks that are up, where `store` would be any of them.
    `settings` are environment variables per service, on top of those in compose.yaml.
    `own_agents`: the folder of agents is a volume that begins as the image's and can be written.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Mapping[str, Mapping[str, str]] | None = None,
        *,
        own_agents: bool = False,
    ) -> None:
        self.engine = engine
        self.settings = settings or {}
        self.own_agents = own_agents
        self.id = f"{LABEL}-{engine.session}-{secrets.token_hex(2)}"
        self.labels = {**engine.labels, "stillrun-stack": self.id}
        self._containers: dict[str, Container] = {}

    def __enter__(self) -> Stack:
        self.network = self.engine.client.networks.create(
            self.id, driver="bridge", labels=self.labels
        )
        if self.engine.me:
            self.network.connect(self.engine.me)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in self._containers:
            print(f"--- {name}\n{self.logs(name)}")
        mine = {"label": [f"stillrun-stack={self.id}"]}
        for container in self.engine.client.containers.list(all=True, filters=mine):
            container.remove(force=True, v=True)
        for volume in self.engine.client.volumes.list(filters=mine):
            volume.remove()
        if self.engine.me:
            self.network.disconnect(self.engine.me)
        self.network.remove()

    # -- starting

    def start(self, *, agents: int = 1, world: bool = True) -> Stack:
        """Start the services and wait until each is ready."""
        names = ["store", *(["world"] if world else []), *(f"agent-{n + 1}" for n in range(agents))]
        for name in names:
            self.add(name)
        for name in names:
            self.wait_ready(name)
        return self

    def run(self, service: str, *arguments: str) -> tuple[int, str]:
        """As `docker compose run --rm` of a service that ends: exit code and output."""
        container = self.add(service, *arguments)
        try:
            ended: int = container.wait(timeout=API_TIMEOUT_S)["StatusCode"]
            return ended, self.logs(service, lines=MAX_LOG_LINES)
        finally:
            del self._containers[service]
            container.remove(force=True)

    def add(self, name: str, *arguments: str) -> Container:
        """Create and start one container, without waiting for it."""
        service = service_of(name)
        config = SERVICES[service]
        container = self.engine.client.containers.create(
            self.engine.image(service),
            list(arguments),
            entrypoint=config.get("entrypoint"),
            name=self._long(name),
            labels=self.labels,
            environment=self._environment(name),
            init=config["init"],
            read_only=config["read_only"],
            tmpfs=dict.fromkeys(config["tmpfs"], ""),
            cap_drop=config["cap_drop"],
            security_opt=config["security_opt"],
            restart_policy={"Name": config["restart"]},
            volumes=dict(self._volumes(service)),
            network=self.network.name,
        )
        # Created on the network to have no other; joined again to be known there by its name.
        self.network.disconnect(container)
        self.network.connect(container, aliases=[name, service])
        self._containers[name] = container
        container.start()
        return container

    def _long(self, name: str) -> str:
        """The container's own name, which is known by DNS too."""
        return f"{self.id}-{name}"

    def _environment(self, name: str) -> dict[str, str]:
        service = service_of(name)
        given = {k: v for k, v in SERVICES[service].get("environment", {}).items() if v is not None}
        given |= self.settings.get(service, {})
        hosts = {given.get("ALLOWED_HOSTS", name), self._long(name)}
        if not self.engine.me:
            # Pytest calls by address; which one the container will get is not known yet.
            self.network.reload()
            (pool, *_) = self.network.attrs["IPAM"]["Config"]
            addresses = ipaddress.ip_network(pool["Subnet"]).hosts()
            hosts |= {str(address) for address in islice(addresses, 32)}
        return {**given, "ALLOWED_HOSTS": ",".join(sorted(hosts))}

    def _volumes(self, service: str) -> Iterator[tuple[str, dict[str, str]]]:
        """Named volumes get a name of this stack; folders stay out, the image has its own copy."""
        for volume in SERVICES[service].get("volumes", []):
            source, target, *_ = (
                volume.rsplit(":", 2) if volume.endswith(":ro") else volume.split(":")
            )
            if source in COMPOSE["volumes"]:
                made = self.engine.client.volumes.create(f"{self.id}-{source}", labels=self.labels)
                yield made.name, {"bind": target, "mode": "rw"}
            elif target == "/agents" and self.own_agents:
                made = self.engine.client.volumes.create(f"{self.id}-agents", labels=self.labels)
                yield made.name, {"bind": target, "mode": "rw"}

    # -- what tests do to a container

    def kill(self, name: str) -> None:
        """SIGKILL, as `docker kill`: the restart policy does not bring it back."""
        self._containers[name].kill()
        self._containers[name].wait()

    def stop(self, name: str) -> tuple[int, float]:
        """SIGTERM, then SIGKILL after the grace period of compose.yaml: exit code and seconds."""
        grace = SERVICES[service_of(name)]["stop_grace_period"]
        began = time.monotonic()
        self._containers[name].stop(timeout=int(grace.removesuffix("s")))
        return self._containers[name].wait()["StatusCode"], time.monotonic() - began

    def again(self, name: str, *, ready: bool = True) -> None:
        """Start a container that was killed or stopped."""
        self._containers[name].start()
        if ready:
            self.wait_ready(name)

    def restart(self, name: str, *, ready: bool = True) -> None:
        """As `docker restart`."""
        grace = SERVICES[service_of(name)]["stop_grace_period"]
        self._containers[name].restart(timeout=int(grace.removesuffix("s")))
        if ready:
            self.wait_ready(name)

    def pause(self, name: str) -> None:
        """Freeze every process of the container, as SIGSTOP would."""
        self._containers[name].pause()

    def unpause(self, name: str) -> None:
        self._containers[name].unpause()

    # -- what tests ask of a container

    def names(self, service: str) -> list[str]:
        return [name for name in self._containers if service_of(name) == service]

    def store(self) -> str:
        """Where the store answers."""
        return self.url("store")

    def agents(self) -> list[str]:
        """Where each agent answers."""
        return [self.url(name) for name in self.names("agent")]

    def url(self, name: str) -> str:
        """Where a container answers; on the host an address, which a restart may change."""
        host = self._long(name)
        if not self.engine.me:
            self._containers[name].reload()
            networks = self._containers[name].attrs["NetworkSettings"]["Networks"]
            host = networks[self.network.name]["IPAddress"]
        return f"http://{host}:{PORTS[service_of(name)]}"

    def wait_ready(self, name: str, *, timeout_s: float = READY_S) -> None:
        """Wait until the container's /readyz is 200."""
        end, last = time.monotonic() + timeout_s, "no answer"
        while time.monotonic() < end:
            with contextlib.suppress(requests.RequestException):
                answer = requests.get(f"{self.url(name)}/readyz", timeout=2)
                if answer.status_code == 200:
                    return
                last = f"{answer.status_code} {answer.text}"
            time.sleep(0.05)
        raise AssertionError(f"{name} not ready in {timeout_s} s: {last}\n{self.logs(name)}")

    def inspect(self, name: str) -> dict[str, Any]:
        """What the engine knows of the container now."""
        self._containers[name].reload()
        found: dict[str, Any] = self._containers[name].attrs
        return found

    def logs(self, name: str, *, lines: int = LOG_LINES) -> str:
        text: bytes = self._containers[name].logs(tail=lines)
        return text.decode(errors="replace")

    def exec(self, name: str, *argv: str, user: str = "") -> tuple[int, str]:
        """Run a command in the container: exit code and output."""
        code, output = self._containers[name].exec_run(list(argv), user=user)
        return code, output.decode(errors="replace")


def service_of(name: str) -> str:
    """`agent-2` is of the service `agent`."""
    return name.partition("-")[0]


def read_compose(text: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """compose.yaml with its ${NAME:-default} filled in; no other form is used there."""
    filled = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: environ.get(found[1]) or found[2], text)
    read: dict[str, Any] = yaml.safe_load(filled)
    return read


COMPOSE = read_compose((ROOT / "compose.yaml").read_text(), os.environ)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
