"""README.md as tests read it: blocks of code, tables, and its curl commands made by requests."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import requests

__all__ = ["README", "blocks", "curl", "section", "table_variables"]

README = (Path(__file__).parents[1] / "README.md").read_text()
TIMEOUT_S = 70.0  # longer than the longest poll that a command asks for


def section(title: str) -> str:
    """The text under `## title`, up to the next heading of that level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.M | re.S)
    assert found, title
    return found.group(1)


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def table_variables() -> set[str]:
    """Names in capitals that the README puts into code quotes."""
    return set(re.findall(r"`([A-Z][A-Z0-9_]{3,})`", README))


def commands(block: str) -> list[str]:
    """The lines of a shell block without comments."""
    lines = (line.split(" #")[0].strip() for line in block.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def curl(command: str, hosts: Mapping[str, str]) -> requests.Response:
    """What `curl` would do with the flags that the README uses (`-d`, `-X`).

    `hosts`: base URLs by the port the README names. Any other flag is an AssertionError.
    """
    words = shlex.split(command)
    assert words.pop(0) == "curl", command
    method, data, url = None, None, ""
    while words:
        word = words.pop(0)
        if word == "-d":
            data = words.pop(0)
        elif word == "-X":
            method = words.pop(0)
        else:
            assert not word.startswith("-"), f"{word} of {command}"
            url = word
    host, slash, path = url.partition("/")
    base = hosts[host.removeprefix("localhost:")]
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # as curl -d sends it
    return requests.request(
        method or ("GET" if data is None else "POST"),
        f"{base}{slash}{path}",
        data=data,
        headers={"Accept": "*/*", **(form if data is not None else {})},
        timeout=TIMEOUT_S,
    )


def shown(response: requests.Response) -> object:
    """The answer as JSON where it is JSON, else its text."""
    try:
        return json.loads(response.text)
    except ValueError:
        return response.text
