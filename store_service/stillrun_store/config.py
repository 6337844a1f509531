"""The store's settings, from flags or the variables that compose sets; a bad one is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stillrun.events import StorageModel

from .storage_models import DEFAULT_MODEL, MAX_EVERY, MODELS

__all__ = ["BadSetting", "Config"]

SCRUB_BYTES_PER_S = 4 << 20  # a small part of what even a slow disk reads: 100 GB in 7 hours
SCRUB_PAUSE_S = 86_400  # most damage is slow to come


class BadSetting(Exception):
    """A setting cannot be used; the text names it and what it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """`storage_model` and `snapshot_every`: for runs that choose none themselves.

    `scrub_bytes_per_s`: how fast files are read again, 0 for never; `scrub_pause_s`: between two
    such passes."""

    data: Path = Path("data")
    host: str = "127.0.0.1"
    port: int = 8100
    allowed_hosts: frozenset[str] = frozenset()
    storage_model: StorageModel = DEFAULT_MODEL
    snapshot_every: int = 50
    scrub_bytes_per_s: int = SCRUB_BYTES_PER_S
    scrub_pause_s: int = SCRUB_PAUSE_S
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
            scrub_bytes_per_s=_whole(
                "SCRUB_BYTES_PER_S",
                env.get("SCRUB_BYTES_PER_S", str(SCRUB_BYTES_PER_S)),
                0,
                1 << 40,
            ),
            scrub_pause_s=_whole(
                "SCRUB_PAUSE_S", env.get("SCRUB_PAUSE_S", str(SCRUB_PAUSE_S)), 1, 365 * 86_400
            ),
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
