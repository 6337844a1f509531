"""The README says what the code does."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from readme import README, blocks, commands, section, table_variables
from stillrun_agent.config import Config as AgentConfig
from stillrun_agent.registry import Registry
from stillrun_store.__main__ import COMMANDS
from stillrun_store.app import create_app
from stillrun_store.config import Config as StoreConfig
from stillrun_store.storage import Engine
from stillrun_store.store import Store

ROOT = Path(__file__).parents[2]


def test_the_agent_of_the_readme_loads(tmp_path):
    (code,) = blocks(section("Your agent"), "python")
    (tmp_path / "travel.py").write_text(code)
    registry = Registry.load(tmp_path)
    assert registry.names() == ["travel"]


def test_the_tests_that_the_readme_shows_pass():
    (code,) = blocks(section("Test your agent"), "python")
    shown: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), shown)
    tests = [value for name, value in shown.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_every_route_of_the_store_is_in_the_readme(tmp_path):
    store = Store(Engine.open(tmp_path / "data"))
    try:
        rules = {rule.rule for rule in create_app(store).url_map.iter_rules()}
    finally:
        store.close()
    written = section("HTTP")
    for rule in rules:
        last_word = re.sub(r"/<[^>]+>$", "", rule).rpartition("/")[2]
        assert re.search(rf"/{last_word}\b" if last_word else "`GET /`", written), rule


def test_the_backup_of_the_readme_can_be_restored_as_it_says(tmp_path):
    """The commands after `store`, with the folders of the container in `tmp_path`."""
    Engine.open(tmp_path / "data").close()
    typed = [
        line for block in blocks(section("Backup and restore"), "sh") for line in commands(block)
    ]
    words = [
        re.split(r" store (?=backup|restore)", line)[1].split()
        for line in typed
        if " store " in line
    ]
    assert [name for name, *_ in words] == ["backup", "restore"]
    (tmp_path / "backups").mkdir()
    for name, *arguments in words:
        if name == "restore":
            (tmp_path / "data").rename(tmp_path / "lost")
        parser = argparse.ArgumentParser()
        COMMANDS[name].add_arguments(parser)
        parser.set_defaults(store_data=tmp_path / "data")
        given = parser.parse_args([f"{tmp_path}{argument}" for argument in arguments])
        assert COMMANDS[name].run(given) == 0
    assert Engine.open(tmp_path / "data").close() is None


def test_every_setting_that_the_readme_names_is_read_somewhere():
    sources = [ROOT / "compose.yaml", *(ROOT / "agent_service").rglob("*.py")]
    sources += [*(ROOT / "store_service").rglob("*.py")]
    read = "\n".join(path.read_text() for path in sources)
    for name in table_variables() - {"SIGKILL", "SIGTERM"}:
        assert name in read, name


def test_the_defaults_in_the_readme_are_the_real_ones():
    store, agent = StoreConfig.from_env({}), AgentConfig.from_env({})
    rows = dict(re.findall(r"^\| (`[A-Z_`, ]+`) \| (.*?) \|", README, re.M))
    assert rows["`STORAGE_MODEL`"] == f"`{store.storage_model}`"
    assert rows["`SNAPSHOT_EVERY`"] == str(store.snapshot_every)
    scrub = f"{store.scrub_bytes_per_s}, {store.scrub_pause_s}"
    assert rows["`SCRUB_BYTES_PER_S`, `SCRUB_PAUSE_S`"] == scrub
    assert rows["`STORE_DATA`, `STORE_LISTEN`"] == f"`./{store.data}`, `{store.host}:{store.port}`"
    assert rows["`LEASE_TTL_S`, `DRAIN_S`"] == f"{agent.lease_ttl_s:g}, {agent.drain_s:g}"
