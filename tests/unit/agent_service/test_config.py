"""Settings: what may be left out, and what is named when it is wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stillrun_agent.config import BadSetting, Config


def test_without_settings_everything_is_on_loopback_and_the_shipped_agents_are_found():
    config = Config.from_env({})
    assert (config.store_url, config.host, config.port) == (
        "http://127.0.0.1:8100",
        "127.0.0.1",
        8101,
    )
    assert (config.modules / "concierge.py").is_file()
    assert config.demo_faults is False


def test_an_empty_variable_is_one_that_is_not_set():
    names = "STORE_URL AGENT_LISTEN AGENT_MODULES AGENT_WORKERS LEASE_TTL_S DRAIN_S SECRETS_DIR"
    names += " ALLOWED_HOSTS LOG_LEVEL DEMO_FAULTS"
    assert Config.from_env(dict.fromkeys(names.split(), "")) == Config.from_env({})


def test_settings_are_read(tmp_path):
    config = Config.from_env(
        {
            "STORE_URL": "http://store:8100/",
            "AGENT_LISTEN": "[::1]:9000",
            "AGENT_MODULES": str(tmp_path),
            "AGENT_WORKERS": "3",
            "LEASE_TTL_S": "2.5",
            "DRAIN_S": "0",
            "SECRETS_DIR": "/run/secrets",
            "ALLOWED_HOSTS": "Agent, other ,",
            "LOG_LEVEL": "debug",
            "DEMO_FAULTS": "1",
        }
    )
    assert (config.store_url, config.host, config.port) == ("http://store:8100", "::1", 9000)
    assert (config.modules, config.workers, config.lease_ttl_s) == (tmp_path, 3, 2.5)
    assert (config.drain_s, config.demo_faults, config.log_level) == (0.0, True, "DEBUG")
    assert config.allowed_hosts == {"agent", "other"}


BAD = [
    ("STORE_URL", "store:8100"),
    ("STORE_URL", "http://"),
    ("STORE_URL", "http://store:99999"),
    ("STORE_URL", "http://store/path"),
    ("AGENT_LISTEN", "8101"),
    ("AGENT_LISTEN", "127.0.0.1:0"),
    ("AGENT_LISTEN", "127.0.0.1:٨"),
    ("AGENT_MODULES", "/no/such/folder"),
    ("AGENT_WORKERS", "0"),
    ("AGENT_WORKERS", "many"),
    ("LEASE_TTL_S", "0"),
    ("LEASE_TTL_S", "nan"),
    ("DRAIN_S", "-1"),
    ("DRAIN_S", "inf"),
    ("LOG_LEVEL", "loud"),
    ("DEMO_FAULTS", "yes"),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_setting_is_named(name, value):
    with pytest.raises(BadSetting, match=name):
        Config.from_env({name: value})


def test_a_bad_setting_ends_the_start_with_2_and_its_name():
    ended = subprocess.run(
        [sys.executable, "-m", "stillrun_agent", "--drain-s", "soon"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "DRAIN_S='soon'" in ended.stderr
