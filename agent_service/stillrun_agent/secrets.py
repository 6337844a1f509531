"""No secret's text is stored: results, errors and decisions that contain one are refused by name.

Always: every file of SECRETS_DIR counts, also one that another process has read; a call that was
made keeps its outcome (I6): the result is replaced by a note that names the secret, for what must
not be stored must not become a doubt either; what was only decided is refused before it is stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec

from stillrun import wire
from stillrun.agent import DidNotHappen, Happened, Tool, Unknown
from stillrun.client import StoreClient
from stillrun.codec import plain_data
from stillrun.context import spellings
from stillrun.errors import InvalidBody
from stillrun.events import ModelReply, Problem

from .tools import Call, Done, MayStart, Outcome, Performer

__all__ = ["GuardedPerformer", "RedactSecrets", "Secrets", "guarded"]

_log = logging.getLogger("stillrun.agent")

MIN_CHARS = 8  # a shorter text is found in innocent ones, whose results would be lost
MIN_PART_CHARS = 4  # of a secret at the end of a text that was cut
MAX_SECRET_BYTES = 64 << 10  # what is larger is no password, and is not looked for


class Secrets:
    """The secrets of a folder, found in texts in any of their `spellings`. None: there are none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def named_in(self, value: Any) -> str | None:
        """The name of a secret whose text is in the value, at any depth; None if there is none."""
        known = self._known()
        if known:
            for text in _texts(value):
                for name, shapes in known.items():
                    if any(shape in text for shape in shapes):
                        return name
        return None

    def redacted(self, text: str) -> str:
        """The text, with the name of each secret in the place of its own text."""
        for name, shapes in self._known().items():
            for shape in shapes:
                text = text.replace(shape, f"[secret {name}]")
                # A long message was cut somewhere: in the middle of the secret, maybe.
                part = _part_at_the_end(text, shape)
                if part:
                    text = f"{text[:-part]}[secret {name}]"
        return text

    def _known(self) -> dict[str, list[str]]:
        """By name, as they may be spelt. Read each time: a secret may be replaced while we run, and
        files are few and small."""
        if self._folder is None or not self._folder.is_dir():
            return {}
        found = {}
        for path in sorted(self._folder.iterdir()):
            try:
                if not path.is_file() or path.stat().st_size > MAX_SECRET_BYTES:
                    continue
                text = path.read_text("utf-8").removesuffix("\n").removesuffix("\r")
            except (OSError, UnicodeDecodeError):
                continue
            if len(text) >= MIN_CHARS:
                found[path.name] = text
        # The longest first: one may be a part of another.
        longest_first = sorted(found.items(), key=lambda item: -len(item[1]))
        return {name: spellings(text) for name, text in longest_first}


def _part_at_the_end(text: str, secret: str) -> int:
    """How many characters of the secret, from its first on but not all, the text ends with; 0 for
    fewer than MIN_PART_CHARS."""
    start = secret[:MIN_PART_CHARS]
    at = text.find(start, max(0, len(text) - len(secret) + 1))
    while at >= 0 and not secret.startswith(text[at:]):
        at = text.find(start, at + 1)
    return 0 if at < 0 else len(text) - at


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


# --- results and errors


class GuardedPerformer(Performer):
    """A performer whose outcomes hold no secret."""

    def __init__(self, *, secrets_dir: Path | None = None) -> None:
        super().__init__(secrets_dir=secrets_dir)
        self._secrets = Secrets(secrets_dir)

    def call_tool(
        self,
        call: Call,
        tool: Tool,
        args: object,
        vars: Mapping[str, Any],
        done: Done,
        may_start: MayStart,
    ) -> None:
        super().call_tool(call, tool, args, vars, self._guarded(done), may_start)

    def ask_hook(
        self,
        call: Call,
        tool: Tool,
        args: object,
        vars: Mapping[str, Any],
        done: Done,
        may_start: MayStart,
    ) -> None:
        super().ask_hook(call, tool, args, vars, self._guarded(done), may_start)

    def call_model(
        self, call: Call, ask: Callable[[], ModelReply], done: Done, may_start: MayStart
    ) -> None:
        super().call_model(call, ask, self._guarded(done), may_start)

    def _guarded(self, done: Done) -> Done:
        def guard(outcome: Outcome) -> None:
            try:
                outcome = cleared(outcome, self._secrets)
            except Exception:
                # The call was made: its outcome must land, and nothing unseen with it.
                _log.exception("%s: its result could not be looked through", outcome.call)
                note = {"$refused": "the result could not be looked through for secrets"}
                outcome = replace(_noted(outcome, note), error=None)
            done(outcome)

        return guard


def cleared(outcome: Outcome, secrets: Secrets) -> Outcome:
    """The outcome without any secret: a note in the place of a value, a name within an error."""
    if outcome.error is not None:
        message = secrets.redacted(outcome.error.message)
        outcome = replace(outcome, error=Problem(type=outcome.error.type, message=message))
    if outcome.vars is not None:
        name = secrets.named_in(_plain(outcome.vars))
        if name is not None:
            _warn(outcome.call, "change of vars", name)
            return _noted(outcome, _note("change of vars", name))
    if outcome.what != "returned":
        return outcome
    if isinstance(outcome.value, ModelReply):
        return _cleared_reply(outcome, outcome.value, secrets)
    hook = isinstance(outcome.value, Happened)
    name = secrets.named_in(_plain(outcome.value.result if hook else outcome.value))
    if name is None:
        return outcome
    _warn(outcome.call, "result", name)
    return _noted(outcome, _note("result", name))


def _noted(outcome: Outcome, note: dict[str, str]) -> Outcome:
    """The outcome with a note for its value, and no change of vars. What a hook has found out about
    its call stays: the note must not put it in doubt again."""
    value: Any = outcome.value
    if isinstance(value, Happened):
        value = Happened(note)
    elif not isinstance(value, DidNotHappen | Unknown):
        value = note
    return replace(outcome, value=value, vars=None)


def _cleared_reply(outcome: Outcome, reply: ModelReply, secrets: Secrets) -> Outcome:
    """A text becomes a note; calls that hold a secret are not planned, and the reply has failed."""
    name = secrets.named_in(_plain([[call.name, call.args] for call in reply.calls]))
    if name is not None:
        _warn(outcome.call, "arguments", name)
        error = Problem(type="secret_in_arguments", message=_says("arguments", name))
        return replace(outcome, what="raised", value=None, error=error)
    name = secrets.named_in(_plain(reply.content))
    if name is None:
        return outcome
    _warn(outcome.call, "reply", name)
    return replace(outcome, value=msgspec.structs.replace(reply, content=_note("reply", name)))


def _plain(value: Any) -> Any:
    """As it would be stored; what cannot be stored is looked through as it is shown."""
    try:
        return plain_data(value)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def _says(what: str, name: str) -> str:
    return f"the {what} contains the secret {name}"


def _note(what: str, name: str) -> dict[str, str]:
    return {"$refused": _says(what, name)}


def _warn(call: Call, what: str, name: str) -> None:
    _log.warning("%s: %s, and is not stored", call, _says(what, name))


# --- decisions


class _Guarded:
    """A client that sends no decision with a secret in it, nor the reason of a pause."""

    def __init__(self, client: StoreClient, secrets: Secrets) -> None:
        self._client, self._secrets = client, secrets

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def append(self, run: str, append: wire.AppendEvents, **options: Any) -> wire.Appended:
        """As StoreClient.append; raises InvalidBody, as for any event that can never be stored."""
        for at, event in enumerate(append.decisions.events if append.decisions else ()):
            name = self._secrets.named_in(event.data)
            if name is not None:
                raise InvalidBody(f"/decisions/events/{at}", _says(event.type, name))
        return self._client.append(run, append, **options)

    def pause(self, run: str, body: wire.By | None = None, **options: Any) -> dict[str, Any]:
        """As StoreClient.pause: the reason may tell what an author's code has raised."""
        if body is not None and body.reason is not None:
            reason = self._secrets.redacted(body.reason)
            body = msgspec.structs.replace(body, reason=reason)
        return self._client.pause(run, body, **options)


def guarded(client: StoreClient, secrets_dir: Path | None) -> StoreClient:
    """The client, refusing decisions that contain a secret of that folder."""
    return cast(StoreClient, _Guarded(client, Secrets(secrets_dir)))


# --- logs


class RedactSecrets(logging.Filter):
    """For handlers: what they write has the names of secrets, in tracebacks too."""

    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._secrets = secrets

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except Exception:
            message = str(record.msg)
        record.msg, record.args = self._secrets.redacted(message), None
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self._secrets.redacted(record.exc_text)
            record.exc_info = None
        return True
