"""What a tool is told about its call: `Context`, with secrets, the log and the author's `vars`.

Always: nothing here makes a call; a secret is neither logged nor shown; changes of `vars` are
collected and become durable in the same append as the call's outcome, or not at all.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from .errors import UnsupportedValue
from .events import VarsChange
from .signatures import copied
from .values import merge_patch, pointer_join, same, validate

__all__ = ["Context", "NotDone", "Secret", "SecretMissing", "Vars", "spellings"]

_SECRET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")  # a file name, never a path


class NotDone(Exception):
    """Raised by a tool that knows: nothing was done. With `retry_in_s` it is called again."""

    def __init__(self, message: str = "nothing was done", *, retry_in_s: float | None = None):
        super().__init__(message)
        self.message = message
        self.retry_in_s = retry_in_s


class SecretMissing(NotDone):
    """The secret is not there: nothing was done with it."""


class Secret(str):
    """A secret's text; its repr, which logs and tracebacks show, is not."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret('...')"


def spellings(secret: str) -> list[str]:
    """How a secret is written in errors and bodies: as it is, and as `repr`, JSON and URLs do; the
    longest first. The lines of a key file, or a quote, look otherwise there."""
    shapes = {
        secret,
        repr(secret)[1:-1],
        repr(f"'\"{secret}")[4:-1],  # within a text that has quotes of both kinds
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
    }
    return sorted(filter(None, shapes), key=len, reverse=True)


class Vars:
    """The author's durable variables as this call sees them, and what it changes.

    A change is a merge patch (RFC 7396) and appends: None removes a key, and two calls that run in
    parallel and change different keys do not disturb each other.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._before: dict[str, Any] = dict(values or {})
        self._now: dict[str, Any] = self._before
        self._append: dict[str, list[Any]] = {}

    def __repr__(self) -> str:
        return f"Vars({sorted(self._now)})"

    def get(self, key: str, default: Any = None) -> Any:
        """The value under `key`, with this call's own changes."""
        value = self._now.get(key, default)
        if key in self._append:
            before = value if isinstance(value, list) else []
            value = [*before, *self._append[key]]
        # The fold shares its values with us: a tool that sorts a list in place must not change it.
        return copied(value)

    def set(self, key: str, value: Any) -> None:
        """Replace the value under `key`; None removes it. Raises UnsupportedValue."""
        validate({key: value})
        _no_null(value, pointer_join("", key))
        self._append.pop(key, None)
        rest = {name: item for name, item in self._now.items() if name != key}
        self._now = rest if value is None else rest | {key: value}

    def merge(self, patch: dict[str, Any]) -> None:
        """Merge a patch into the whole of vars (RFC 7396). Raises UnsupportedValue."""
        validate(patch)
        if not isinstance(patch, dict):
            raise UnsupportedValue("", "a merge patch of vars is an object")
        for key in patch:
            self._append.pop(key, None)
        merged: Any = merge_patch(self._now, patch)
        self._now = merged

    def append(self, key: str, value: Any) -> None:
        """Add to the end of the list under `key`, which is made if need be."""
        validate({key: [value]})
        self._append.setdefault(key, []).append(value)

    def change(self) -> VarsChange | None:
        """What `set`, `merge` and `append` add up to, for the outcome's append; None if nothing."""
        patch = _difference(self._before, self._now)
        if not patch and not self._append:
            return None
        return VarsChange(
            merge=patch, append={key: [*items] for key, items in self._append.items()}
        )


def _no_null(value: object, pointer: str) -> None:
    """In a merge patch null means 'remove': inside a new object it would be lost in silence."""
    if isinstance(value, dict):
        for key, item in value.items():
            if item is None:
                raise UnsupportedValue(
                    pointer_join(pointer, key), "vars hold no null inside an object: leave it out"
                )
            _no_null(item, pointer_join(pointer, key))


def _difference(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The smallest merge patch that makes `now` of `before`."""
    patch: dict[str, Any] = {key: None for key in before if key not in now}
    for key, value in now.items():
        old = before.get(key)
        if key in before and same(old, value):
            continue
        both = isinstance(old, dict) and isinstance(value, dict)
        patch[key] = _difference(old, value) if both else value  # type: ignore[arg-type]
    return patch


class _CallLog(logging.LoggerAdapter[logging.Logger]):
    """Each line names its run and effect, as text and as fields."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        fields = dict(self.extra or {})
        kwargs["extra"] = {**fields, **kwargs.get("extra", {})}
        return f"{fields['run']} {fields['effect']}: {msg}", kwargs


class Context:
    """One call of a tool, read-only.

    run, effect: ids. key: the idempotency key to hand to the callee, the same on every attempt.
    attempt: from 1. timeout_s, deadline: when the call is given up; `time_left_s()` says how much
    is left. log: names run and effect. vars: the author's durable variables.
    """

    __slots__ = (
        "run", "key", "effect", "attempt", "timeout_s", "deadline", "log", "vars",
        "_secrets_dir", "_secrets", "_ends",
    )  # fmt: skip

    run: str
    key: str
    effect: str
    attempt: int
    timeout_s: float
    deadline: datetime.datetime
    log: logging.LoggerAdapter[logging.Logger]
    vars: Vars

    def __init__(
        self,
        *,
        run: str,
        key: str,
        effect: str,
        attempt: int = 1,
        timeout_s: float = 60.0,
        vars: Mapping[str, Any] | None = None,
        secrets_dir: Path | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "run", run)
        put(self, "key", key)
        put(self, "effect", effect)
        put(self, "attempt", attempt)
        put(self, "timeout_s", timeout_s)
        # Two clocks: a person reads the first; a step of the wall clock must not move the second.
        now = datetime.datetime.now(datetime.UTC)
        put(self, "deadline", now + datetime.timedelta(seconds=timeout_s))
        put(self, "_ends", time.monotonic() + timeout_s)
        put(
            self,
            "log",
            _CallLog(logging.getLogger("stillrun.tool"), {"run": run, "effect": effect}),
        )
        put(self, "vars", Vars(vars))
        put(self, "_secrets_dir", secrets_dir)
        put(self, "_secrets", [])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a context is read-only: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a context is read-only: {name}")

    def __repr__(self) -> str:
        return f"Context(run={self.run!r}, effect={self.effect!r}, attempt={self.attempt})"

    def time_left_s(self) -> float:
        """Seconds until this call is given up, never below 0."""
        ends: float = self._ends  # type: ignore[attr-defined]
        return max(0.0, ends - time.monotonic())

    def secret(self, name: str) -> Secret:
        """The text of a file in SECRETS_DIR, without its last newline; raises SecretMissing."""
        folder: Path | None = self._secrets_dir  # type: ignore[attr-defined]
        if not _SECRET.match(name):
            raise SecretMissing(f"{name!r:.80} is no name of a secret")
        if folder is None:
            raise SecretMissing(f"secret {name!r}: SECRETS_DIR is not set")
        try:
            text = (folder / name).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SecretMissing(f"secret {name!r} cannot be read: {type(error).__name__}") from None
        secret = Secret(text.removesuffix("\n").removesuffix("\r"))
        self._secrets.append((name, secret))  # type: ignore[attr-defined]
        return secret

    def without_secrets(self, text: str) -> str:
        """The text with the name of each secret that this call was given in its place, in any of
        its `spellings`."""
        given: list[tuple[str, Secret]] = self._secrets  # type: ignore[attr-defined]
        shapes = {shape: name for name, it in given for shape in spellings(str(it))}
        # The longest first: one secret may be a part of another.
        for shape in sorted(filter(None, shapes), key=len, reverse=True):
            text = text.replace(shape, f"[secret {shapes[shape]}]")
        return text
