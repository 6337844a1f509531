"""The agent service as processes: how it starts, ends, and is killed.

The tool of these tests stands in the reading end of a named pipe until the test writes to it, so
a call is in flight exactly as long as the test wants.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests

from stillrun.client import StoreClient
from stillrun.wire import StartRun
from stillrun_agent import __main__ as main
from stillrun_agent.config import Config

LIMIT_S = 20.0  # for anything awaited here; it takes milliseconds on a free machine

AGENT = """
from stillrun import Agent, Call, Succeed, Turn, tool

@tool(effect="write")
def stand(ctx, pipe: str):
    with open(pipe) as reading:
        return reading.read()

agent = Agent("stander", tools=[stand])

@agent.decide
def decide(state):
    said = Turn(state.input, state.messages).results("stand")
    return Succeed(said[0]) if said else Call("stand", {"pipe": state.input})
"""


def until(found, what):
    ends = time.monotonic() + LIMIT_S
    while time.monotonic() < ends:
        if answer := found():
            return answer
        time.sleep(0.01)
    raise AssertionError(f"{what}: not within {LIMIT_S} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=2).status_code == 200
    except requests.RequestException:
        return False


class Services:
    """A store and agents, as `python -m` starts them; all are killed at the end."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        (tmp_path / "agents").mkdir()
        (tmp_path / "agents" / "stander.py").write_text(AGENT)
        self.log = tmp_path / "log"
        self.store_url = f"http://127.0.0.1:{free_port()}"
        self.processes: list[subprocess.Popen] = []
        self.clients: list[StoreClient] = []

    def run(self, module: str, **env: str) -> subprocess.Popen:
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def store(self) -> StoreClient:
        listen = self.store_url.removeprefix("http://")
        self.run("stillrun_store", STORE_LISTEN=listen, STORE_DATA=str(self.folder / "data"))
        until(lambda: answers(f"{self.store_url}/readyz"), "the store is ready")
        self.clients.append(StoreClient(self.store_url))
        return self.clients[-1]

    def agent(self, **env: str) -> tuple[subprocess.Popen, str]:
        listen = f"127.0.0.1:{free_port()}"
        given = {
            "STORE_URL": self.store_url,
            "AGENT_LISTEN": listen,
            "AGENT_MODULES": str(self.folder / "agents"),
            **env,
        }
        process = self.run("stillrun_agent", **given)
        until(lambda: answers(f"http://{listen}/healthz"), "the agent answers")
        return process, f"http://{listen}"

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for process in self.processes:
            process.kill()
            process.wait(LIMIT_S)


@pytest.fixture
def services(tmp_path):
    services = Services(tmp_path)
    yield services
    services.close()


def children(process: subprocess.Popen) -> list[int]:
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in text.split()]


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"  # the dead wait for their parent


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_service_ends_in_good_order_with_and_without_a_store(number, services):
    process, _ = services.agent()
    process.send_signal(number)
    assert process.wait(LIMIT_S) == 0
    services.store()
    process, url = services.agent()
    until(lambda: answers(f"{url}/readyz"), "the agent is ready")
    process.send_signal(number)
    assert process.wait(LIMIT_S) == 0


def test_services_may_start_in_any_order(services):
    _, url = services.agent()
    problem = requests.get(f"{url}/readyz").json()
    assert problem["code"] == "store_unreachable"
    services.store()
    until(lambda: answers(f"{url}/readyz"), "the agent finds the store")


def test_a_stop_while_the_agents_are_still_loading_ends_at_once(services):
    pipe = services.folder / "loading"
    os.mkfifo(pipe)
    (services.folder / "agents" / "slow.py").write_text(f"open({str(pipe)!r}).read()\n")
    process = services.run("stillrun_agent", AGENT_MODULES=str(services.folder / "agents"))
    with pipe.open("w"):  # opened: the file is being loaded
        process.terminate()
        assert process.wait(LIMIT_S) == 0


def test_a_main_thread_that_ends_first_drains_all_the_same(monkeypatch):
    """granian's handler may run, and its server return, before `on_stop` has been scheduled."""
    done = []

    class Worker:
        is_ready, start = staticmethod(lambda: True), staticmethod(lambda: done.append("start"))
        drain, stop = (
            staticmethod(lambda: done.append("drain")),
            staticmethod(lambda: done.append("stop")),
        )

        def __init__(self, *_, **__): ...

    served = SimpleNamespace(_spawn_wsgi_worker=lambda *_: done.append("served"))
    for name, stub in {
        "Worker": Worker,
        "MPServer": served,
        "on_stop": lambda stop: None,
        "die_with_parent": lambda: None,
        "_until_granian_listens": lambda end: None,
    }.items():
        monkeypatch.setattr(main, name, stub)
    main.serve(Config(), 1, "name", None)
    assert done == ["start", "served", "drain", "stop"]


@linux
def test_a_killed_parent_leaves_no_process_behind(services):
    process, _ = services.agent()
    (child,) = children(process)
    process.kill()
    process.wait(LIMIT_S)
    until(lambda: not is_alive(child), "the child dies with its parent")


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_lost_child_ends_the_service_so_that_it_is_started_again(number, services):
    process, _ = services.agent()
    os.kill(children(process)[0], number)
    assert process.wait(LIMIT_S) != 0


def in_flight(services, client: StoreClient) -> Path:
    """A run whose call stands at the pipe."""
    pipe = services.folder / "pipe"
    os.mkfifo(pipe)
    client.start_run(StartRun(run="r", agent="stander", input=str(pipe)))
    until(lambda: "e1" in {e["effect"] for e in client.effects("r", status="open")}, "it is called")
    return pipe


def types(client: StoreClient) -> list[str]:
    return [event.type for event in client.events("r").events]


def test_a_planned_stop_in_mid_call_lets_the_call_end_and_records_it(services):
    client = services.store()
    process, url = services.agent(LEASE_TTL_S="3")  # shorter, and a busy machine lets it expire
    pipe = in_flight(services, client)
    writing = pipe.open("w")  # returns once the call has the pipe open
    process.terminate()
    until(lambda: not answers(f"{url}/readyz"), "it is stopping")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3.5)  # longer than the lease, which the drain goes on to renew
    writing.write("done")
    writing.close()
    assert process.wait(LIMIT_S) == 0
    seen = types(client)
    assert "effect_succeeded" in seen and "effect_doubted" not in seen
    assert client.run("r")["lease"] is None
    services.agent()
    until(lambda: client.run("r")["status"] == "succeeded", "the next one goes on")
    assert client.run("r")["output"] == "done"
    assert types(client).count("effect_intended") == 1


def test_a_call_that_outlasts_the_drain_is_a_visible_doubt(services):
    client = services.store()
    process, _ = services.agent(DRAIN_S="0", LEASE_TTL_S="1")
    pipe = in_flight(services, client)
    with pipe.open("w"):
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    until(lambda: client.run("r")["status"] == "in_doubt", "it is in doubt")


@linux
def test_waiting_clients_do_not_hold_up_a_stop(services):
    client = services.store()
    process, url = services.agent()
    pipe = in_flight(services, client)
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as waiting:
        waiting.sendall(b"GET /runs/r/result?timeout_s=60 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with pipe.open("w") as writing:
            writing.write("done")
        process.terminate()
        assert process.wait(LIMIT_S) == 0
