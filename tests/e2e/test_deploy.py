"""The outreach scenario by compose itself: a mail takes 30 s, and the agent goes in mid-call.

The stack is a user's: compose.yaml with its own settings, a folder of agents, the ports published.
Where there is no `docker compose` (the image of the tests has none) it is skipped; .ci/run runs it
on the engine's host.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from services import eventually

ROOT = Path(__file__).parents[2]
STARTER = ROOT / "agent_service/agents/starter.py"
MAIL_S = 30
COMPOSE_S = 400  # a first build installs the dependencies
# What the starter calls "the real call": the desk's mail box, which keeps a ledger. Only the first
# attempt takes its time, so that the test does not take twice as long.
RETURN = "    return OUTBOX.setdefault("
SEND = f"""
    import os, time, requests
    if ctx.attempt == 1:
        time.sleep({MAIL_S})
    requests.post(
        os.environ["WORLD_URL"] + "/mails",
        json={{"run": ctx.run, "to": to, "subject": subject, "body": body}},
        headers={{"Idempotency-Key": ctx.key}},
        timeout=20,
    ).raise_for_status()
"""
# A change that makes an image of its own, as a changed line of code would.
OVERRIDE = """
services:
  agent: { build: { labels: { stillrun-test.deploy: "${DEPLOY}" } } }
"""


class Project:
    """One compose project of compose.yaml, as a user has it, under a name of its own."""

    def __init__(self, folder: Path) -> None:
        agents = folder / "agents"
        agents.mkdir()
        source = STARTER.read_text()
        assert source.count(RETURN) == 1
        (agents / "outreach.py").write_text(source.replace(RETURN, SEND + RETURN))
        override = folder / "override.yaml"
        override.write_text(OVERRIDE)
        folder.chmod(0o755)  # the container's user reads it
        self.name = f"stillrun-test-{secrets.token_hex(4)}"
        self._files = ["-f", str(ROOT / "compose.yaml"), "-f", str(override)]
        ports = dict.fromkeys(("STORE_PORT", "AGENT_PORTS", "WORLD_PORT"), "0")
        mine = {"AGENTS_DIR": str(agents), "DEPLOY": "1", "COMPOSE_PROJECT_NAME": self.name}
        self.environment = {**os.environ, **ports, **mine}

    def __call__(self, *words: str) -> str:
        """`docker compose` with these words; what it printed."""
        command = ["docker", "compose", *self._files, "--profile", "demo", *words]
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=COMPOSE_S,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout.strip()

    def url(self, service: str, port: int) -> str:
        return f"http://{self('port', service, str(port))}"

    def container(self) -> str:
        return self("ps", "-q", "agent")


def has_compose() -> bool:
    try:
        for words in (["compose", "version"], ["info"]):
            subprocess.run(["docker", *words], capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Iterator[Project]:
    if not has_compose():
        pytest.skip("no docker compose that reaches an engine")
    compose = Project(tmp_path_factory.mktemp("outreach"))
    try:
        compose("up", "-d", "--build", "--wait", "store", "world", "agent")
        yield compose
    finally:
        print(compose("logs", "--tail", "60"))
        compose("down", "--volumes", "--rmi", "local", "--timeout", "1")


class Run:
    """A run of outreach at the store, and what the desk has of it."""

    def __init__(self, project: Project, run: str) -> None:
        self.store, self.run = project.url("store", 8100), run
        self.world = project.url("world", 8102)

    def get(self, path: str = "") -> dict:
        return requests.get(f"{self.store}/runs/{self.run}{path}", timeout=10).json()

    def post(self, path: str, body: dict) -> None:
        url = f"{self.store}/runs/{self.run}/{path}"
        requests.post(url, json=body, timeout=10).raise_for_status()

    def events(self, kind: str) -> list[dict]:
        return self.get(f"/events?limit=1000&type={kind}")["events"]

    def mails(self) -> list[dict]:
        ledger = requests.get(f"{self.world}/ledger?run={self.run}", timeout=10).json()
        return [each for each in ledger["applied"] if each["kind"] == "mail"]

    def send(self) -> dict:
        """Start it, approve the mail, and answer its effect once the call is open."""
        body = {"agent": "outreach", "input": {"about": "tea", "to": "ana@example.com"}}
        requests.put(f"{self.store}/runs/{self.run}", json=body, timeout=10).raise_for_status()
        eventually(lambda: self.get("/waits")["waits"], "asks", 30)
        self.post("approve", {"by": "ana"})
        return eventually(lambda: self.mail_that_is("open"), "is sent", 30)

    def mail_that_is(self, status: str) -> dict | None:
        sent = [each for each in self.get("/effects")["effects"] if each["name"] == "send"]
        return next((each for each in sent if each["status"] == status), None)

    def ends(self, within_s: float) -> None:
        eventually(lambda: self.get()["status"] == "succeeded", f"{self.run} ends", within_s)


def test_a_deploy_while_a_mail_is_sent_makes_one_mail_and_no_doubt(project):
    run, before = Run(project, "deployed"), project.container()
    run.send()
    began = time.monotonic()
    project.environment["DEPLOY"] = "2"
    project("up", "-d", "--build", "agent")
    assert project.container() != before, "compose has not recreated the agent"
    run.ends(within_s=MAIL_S)
    assert time.monotonic() - began > MAIL_S / 2, "the call was over before the deploy"
    assert run.events("effect_doubted") == []
    mail = run.mail_that_is("succeeded")
    assert mail is not None and mail["attempt"] == 1
    assert [each["key"] for each in run.mails()] == [mail["key"]]


def test_a_kill_while_a_mail_is_sent_makes_one_doubt_and_the_repeat_has_the_same_key(project):
    run = Run(project, "killed")
    key = run.send()["key"]
    subprocess.run(["docker", "kill", project.container()], capture_output=True, check=True)
    project("up", "-d", "agent")
    doubt = eventually(lambda: run.mail_that_is("in_doubt"), "is in doubt", 60)
    assert run.get()["status"] == "in_doubt"
    assert run.mails() == []
    settled = {"outcome": "did_not_happen", "by": "ana"}
    run.post(f"effects/{doubt['effect']}/settle", settled)
    run.ends(within_s=60)
    assert len(run.events("effect_doubted")) == 1
    intents = [e["data"] for e in run.events("effect_intended") if e["data"]["name"] == "send"]
    assert [each["key"] for each in intents] == [key, key]
    assert [each["key"] for each in run.mails()] == [key]
