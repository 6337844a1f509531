"""The compose files as the compose CLI reads them; without that CLI these tests skip."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def compose():
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], check=False).returncode:
        pytest.skip("no docker compose here")
    text = subprocess.run(
        [docker, "compose", "version", "--short"], capture_output=True, text=True, check=True
    ).stdout
    if tuple(map(int, re.findall(r"\d+", text)[:2])) < (2, 20):
        pytest.skip(f"`include` needs Compose 2.20, this is {text.strip()}")

    def config(folder, **env):
        ended = subprocess.run(
            [docker, "compose", "config", "--format", "json"],
            cwd=folder,
            env={
                "PATH": str(Path(docker).parent) + ":/usr/bin:/bin",
                "HOME": "/nonexistent",
                **env,
            },
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    return config


def test_the_include_example_brings_store_and_agent_into_another_stack(compose, tmp_path):
    shutil.copy(ROOT / "compose.include.example.yaml", tmp_path / "compose.yaml")
    (tmp_path / "stillrun").mkdir()
    shutil.copy(ROOT / "compose.yaml", tmp_path / "stillrun" / "compose.yaml")
    (tmp_path / ".env").write_text("AGENTS_DIR=../agents\n")
    found = compose(tmp_path)
    services = found["services"]
    assert sorted(services) == ["agent", "app", "store"]  # the profiles stay asleep
    assert services["agent"]["build"]["context"] == str(tmp_path / "stillrun")
    agents, secrets = services["agent"]["volumes"]
    assert (agents["source"], agents["target"]) == (str(tmp_path / "agents"), "/agents")
    assert secrets["target"] == "/run/secrets" and secrets["read_only"]
    assert services["app"]["environment"]["STORE_URL"] == "http://store:8100"
    assert services["store"]["environment"]["ALLOWED_HOSTS"] == "store,"
    assert "data" in found["volumes"]


def test_the_repository_may_lie_elsewhere(compose, tmp_path):
    shutil.copy(ROOT / "compose.include.example.yaml", tmp_path / "compose.yaml")
    services = compose(tmp_path, STILLRUN_DIR=str(ROOT))["services"]
    assert services["agent"]["build"]["context"] == str(ROOT)


# --- packages


def test_the_shipped_requirements_ask_for_nothing_and_the_image_is_built_with_them():
    text = (ROOT / "agent_service/agents/requirements.txt").read_text()
    assert [line for line in text.splitlines() if line and not line.startswith("#")] == []
    dockerfile = (ROOT / "agent_service/Dockerfile").read_text()
    lock, packages, sources = (
        dockerfile.index(line)
        for line in (
            "--require-hashes -r /src/requirements.lock",
            "COPY agent_service/agents/requirements.txt",
            "COPY shared /src/shared",
        )
    )
    assert lock < packages < sources  # a change of code keeps the layer of packages


@pytest.mark.parametrize(
    ("text", "installs"),
    [
        ("# only words\n", False),
        ("\n   \n  # more\n", False),
        ("", False),
        ("numpy==2.1\n", True),
        ("# words\n  numpy\n", True),
        ("--index-url https://x\nnumpy", True),
    ],
)
def test_pip_runs_only_if_a_line_asks_for_something(text, installs, tmp_path):
    dockerfile = (ROOT / "agent_service/Dockerfile").read_text()
    (pattern,) = re.findall(r"grep -qE '(.+?)' /src/agents/requirements.txt", dockerfile)
    (tmp_path / "r.txt").write_text(text)
    found = subprocess.run(["grep", "-qE", pattern, str(tmp_path / "r.txt")], check=False)
    assert (found.returncode == 0) is installs


def test_hosts_of_the_shell_are_allowed_beside_the_services_own_names(compose, tmp_path):
    shutil.copy(ROOT / "compose.yaml", tmp_path)
    services = compose(tmp_path, ALLOWED_HOSTS="runs.example.org")["services"]
    assert services["store"]["environment"]["ALLOWED_HOSTS"] == "store,runs.example.org"
    assert services["agent"]["environment"]["ALLOWED_HOSTS"] == "agent,runs.example.org"
