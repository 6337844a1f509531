"""The store's settings, from flags or the variables that compose sets; a bad one is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stillrun.events import StorageModel

from .storage_models import DEFAULT_MODEL, MAX_EVERY, MODELS

__all__ = ["BadSetting", "Config"]


class BadSetting(Exception):
    """A setting cannot be used; the text names it and what it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """`storage_model` and `snapshot_every`: for runs that choose none themselves."""

    data: Path = Path("data")
    host: str = "127.0.0.1"
    port: int = 8100
    allowed_hosts: frozenset[str] = frozenset()
    storage_model: StorageModel = DEFAULT_MODEL
    snapshot_every: int = 50
    log_level: str = "INFO"

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Config:
        """Read the variables that `__main__.SETTINGS` lists."""
        host, port = _listen("STORE_LISTEN", env.get("STORE_LISTEN", "127.0.0.1:8100"))
        return cls(
            data=Path(env.get("STORE_DATA", "data")),
            host=host,
            port=port,
            allowed_hosts=frozenset(
                part.strip().lower()
                for part in env.get("ALLOWED_HOSTS", "").split(",")
                if part.strip()
            ),
            storage_model=_model(env.get("STORAGE_MODEL", DEFAULT_MODEL)),
            snapshot_every=_whole("SNAPSHOT_EVERY", env.get("SNAPSHOT_EVERY", "50"), 1, MAX_EVERY),
            log_level=_level(env.get("LOG_LEVEL", "INFO")),
        )


def _listen(name: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadSetting(f"{name}={text!r}: expected HOST:PORT, as in 127.0.0.1:8100")
    return host, int(port)


def _whole(name: str, text: str, low: int, high: int) -> int:
    if not text.isdecimal() or not low <= int(text) <= high:
        raise BadSetting(f"{name}={text!r}: expected a whole number from {low} to {high}")
    return int(text)


def _model(text: str) -> StorageModel:
    for model in MODELS:
        if text.lower() == model:
            return model
    raise BadSetting(f"STORAGE_MODEL={text!r}: expected {', '.join(MODELS)}")


def _level(text: str) -> str:
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise BadSetting(f"LOG_LEVEL={text!r}: expected DEBUG, INFO, WARNING or ERROR")
    return text.upper()
