"""The agent service's settings, from flags or the variables of compose; a bad one is named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

__all__ = ["BadSetting", "Config"]

MAX_WORKERS = 1_000  # each run at work holds a thread
MAX_LEASE_S = 3_600.0  # a lease of a dead worker parks its runs for that long
MAX_DRAIN_S = 3_600.0
MAX_MODEL_NAME_CHARS = 200
MAX_MODEL_TIMEOUT_S = 280.0  # below the 300 s after which the worker gives up a model call itself


class BadSetting(Exception):
    """A setting cannot be used; the text names it and what it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """`workers`: runs worked on at once. `modules`: the folder of agents, None where there is none.

    `drain_s`: how long calls in flight may go on after SIGTERM. `model_url`: of the endpoint of
    named models, up to and with its version; `model_name`: for agents that name none;
    `model_timeout_s`: how long one answer may take.
    """

    store_url: str = "http://127.0.0.1:8100"
    host: str = "127.0.0.1"
    port: int = 8101
    modules: Path | None = None
    workers: int = 16
    lease_ttl_s: float = 10.0
    drain_s: float = 60.0
    secrets_dir: Path | None = None
    allowed_hosts: frozenset[str] = frozenset()
    model_url: str | None = None
    model_api: Literal["openai", "anthropic"] = "openai"
    model_name: str | None = None
    model_key_file: Path | None = None
    model_timeout_s: float = 120.0
    log_level: str = "INFO"
    demo_faults: bool = False

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Config:
        """Read STORE_URL, AGENT_LISTEN, AGENT_MODULES, AGENT_WORKERS, LEASE_TTL_S, DRAIN_S,
        SECRETS_DIR, ALLOWED_HOSTS, MODEL_URL, MODEL_API, MODEL_NAME, MODEL_KEY_FILE,
        MODEL_TIMEOUT_S, LOG_LEVEL and DEMO_FAULTS; an empty one is one not set.

        DEMO_FAULTS is read by the shipped tools themselves; here it is only checked and shown.
        """
        given = {name: value for name, value in env.items() if value != ""}
        host, port = _listen("AGENT_LISTEN", given.get("AGENT_LISTEN", "127.0.0.1:8101"))
        return cls(
            store_url=_url("STORE_URL", given.get("STORE_URL", "http://127.0.0.1:8100")),
            host=host,
            port=port,
            modules=_modules("AGENT_MODULES", given.get("AGENT_MODULES")),
            workers=_whole("AGENT_WORKERS", given.get("AGENT_WORKERS", "16"), 1, MAX_WORKERS),
            lease_ttl_s=_seconds("LEASE_TTL_S", given.get("LEASE_TTL_S", "10"), 1.0, MAX_LEASE_S),
            drain_s=_seconds("DRAIN_S", given.get("DRAIN_S", "60"), 0.0, MAX_DRAIN_S),
            # A missing folder of secrets is no mistake: only an agent that asks for one needs it.
            secrets_dir=Path(given["SECRETS_DIR"]) if "SECRETS_DIR" in given else None,
            allowed_hosts=_hosts(given.get("ALLOWED_HOSTS", "")),
            model_url=_base_url("MODEL_URL", given.get("MODEL_URL")),
            model_api=_api("MODEL_API", given.get("MODEL_API", "openai")),
            model_name=_model(given.get("MODEL_NAME"), "MODEL_URL" in given),
            model_key_file=_file("MODEL_KEY_FILE", given.get("MODEL_KEY_FILE")),
            model_timeout_s=_seconds(
                "MODEL_TIMEOUT_S", given.get("MODEL_TIMEOUT_S", "120"), 1.0, MAX_MODEL_TIMEOUT_S
            ),
            log_level=_level(given.get("LOG_LEVEL", "INFO")),
            demo_faults=_flag("DEMO_FAULTS", given.get("DEMO_FAULTS", "0")),
        )


def _listen(name: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not _digits(port) or not 0 < int(port) < 65_536:
        raise BadSetting(f"{name}={text!r}: expected HOST:PORT, as in 127.0.0.1:8101")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _url(name: str, text: str) -> str:
    if "@" in text:
        # Not shown: what stands there may be a password, and we log and show this address.
        raise BadSetting(f"{name}: expected http://HOST:PORT, without user and password")
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise BadSetting(f"{name}={text!r}: expected http://HOST:PORT")
    return text.rstrip("/")


def _base_url(name: str, text: str | None) -> str | None:
    """As clients of the API take it: the paths of its calls come after it."""
    if text is None:
        return None
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
        parts = urlsplit("")
    path = parts.path.rstrip("/")
    if "@" in parts.netloc:
        # Not shown: what stands there may be a password.
        raise BadSetting(f"{name}: a key goes into MODEL_KEY_FILE, not into the address")
    good = good and path and not path.endswith(("/completions", "/messages", "/responses"))
    if not good or parts.query or parts.fragment:
        raise BadSetting(f"{name}={text!r}: expected the base URL, as in https://HOST/v1")
    return text.rstrip("/")


def _api(name: str, text: str) -> Literal["openai", "anthropic"]:
    if text == "openai":
        return "openai"
    if text == "anthropic":
        return "anthropic"
    raise BadSetting(f"{name}={text!r}: expected openai or anthropic")


def _model(text: str | None, has_url: bool) -> str | None:
    if text is None:
        return None
    if not has_url and text != "offline":
        raise BadSetting(f"MODEL_NAME={text!r}: it needs MODEL_URL, where that model is")
    if not all("!" <= each <= "~" for each in text) or len(text) > MAX_MODEL_NAME_CHARS:
        raise BadSetting(f"MODEL_NAME={text!r:.80}: expected the name of a model")
    return text


def _file(name: str, text: str | None) -> Path | None:
    if text is not None and not Path(text).is_file():
        raise BadSetting(f"{name}={text!r}: expected a file that exists")
    return None if text is None else Path(text)


def _modules(name: str, text: str | None) -> Path | None:
    if text is None:
        # Beside the sources there are the shipped agents; an installed package has none beside it.
        source = Path(__file__).resolve().parents[1]
        shipped = source / "agents"
        return shipped if (source / "pyproject.toml").is_file() and shipped.is_dir() else None
    if not Path(text).is_dir():
        raise BadSetting(f"{name}={text!r}: expected a folder that exists")
    return Path(text)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _whole(name: str, text: str, low: int, high: int) -> int:
    if not _digits(text) or not low <= int(text) <= high:
        raise BadSetting(f"{name}={text!r}: expected a whole number from {low} to {high}")
    return int(text)


def _seconds(name: str, text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise BadSetting(f"{name}={text!r}: expected seconds from {low:g} to {high:g}")
    return value


def _hosts(text: str) -> frozenset[str]:
    return frozenset(part.strip().lower() for part in text.split(",") if part.strip())


def _level(text: str) -> str:
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise BadSetting(f"LOG_LEVEL={text!r}: expected DEBUG, INFO, WARNING or ERROR")
    return text.upper()


def _flag(name: str, text: str) -> bool:
    if text not in ("0", "1"):
        raise BadSetting(f"{name}={text!r}: expected 0 or 1")
    return text == "1"
