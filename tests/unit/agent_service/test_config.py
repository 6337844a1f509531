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
    names += " MODEL_URL MODEL_API MODEL_NAME MODEL_KEY_FILE MODEL_TIMEOUT_S"
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


def test_settings_of_the_model_are_read(tmp_path):
    key = tmp_path / "key"
    key.touch()
    config = Config.from_env(
        {
            "MODEL_URL": "https://host/api/v1/",
            "MODEL_API": "anthropic",
            "MODEL_NAME": "meta/llama-3.1:free",
            "MODEL_KEY_FILE": str(key),
            "MODEL_TIMEOUT_S": "30",
        }
    )
    assert (config.model_url, config.model_api) == ("https://host/api/v1", "anthropic")
    assert (config.model_name, config.model_key_file) == ("meta/llama-3.1:free", key)
    assert config.model_timeout_s == 30.0


def test_without_settings_there_is_no_endpoint():
    config = Config.from_env({})
    assert (config.model_url, config.model_name, config.model_key_file) == (None, None, None)
    assert (config.model_api, config.model_timeout_s) == ("openai", 120.0)


def test_an_agent_service_that_stays_offline_needs_no_url():
    assert Config.from_env({"MODEL_NAME": "offline"}).model_name == "offline"


def test_a_password_in_the_models_address_is_refused_and_not_shown():
    with pytest.raises(BadSetting, match="MODEL_KEY_FILE") as refused:
        Config.from_env({"MODEL_URL": "https://user:canary@host/v1"})
    assert "canary" not in str(refused.value)


BAD = [
    ("MODEL_URL", "host/v1"),
    ("MODEL_URL", "https://host"),
    ("MODEL_URL", "https://host/"),
    ("MODEL_URL", "https://host:99999/v1"),
    ("MODEL_URL", "https://host/v1/chat/completions"),
    ("MODEL_URL", "https://host/v1/messages"),
    ("MODEL_URL", "https://host/v1?version=2"),
    ("MODEL_API", "OpenAI"),
    ("MODEL_NAME", "without-a-url"),
    ("MODEL_KEY_FILE", "/no/such/file"),
    ("MODEL_KEY_FILE", "/tmp"),
    ("MODEL_TIMEOUT_S", "0"),
    ("MODEL_TIMEOUT_S", "281"),
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


@pytest.mark.parametrize("name", ["two words", "é", "x" * 201])
def test_a_name_that_no_model_has_is_refused(name):
    with pytest.raises(BadSetting, match="MODEL_NAME"):
        Config.from_env({"MODEL_URL": "https://host/v1", "MODEL_NAME": name})


@pytest.mark.parametrize("rest", ["store:8100", "[store", "store:8100/path"])
def test_a_password_in_the_address_of_the_store_is_refused_and_not_shown(rest):
    with pytest.raises(BadSetting, match="STORE_URL") as refused:
        Config.from_env({"STORE_URL": f"http://ann:hunter2@{rest}"})
    assert "hunter2" not in str(refused.value)


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
