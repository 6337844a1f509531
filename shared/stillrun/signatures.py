"""A function's parameters as a typed struct: what a model may send, and what it means.

Always: arguments travel as plain values and reach the function typed; an unknown, missing or wrong
one is refused by name before anything is called; a default is shown in the schema.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec.json import schema_components  # makes no bytes: the codec stays their only home

from .errors import InvalidParameter, UnsupportedValue
from .values import check_name, validate

__all__ = [
    "AuthoringError",
    "BadArguments",
    "Parameters",
    "authors_name",
    "authors_seconds",
    "authors_text",
    "copied",
    "is_generator",
    "json_schema",
    "plain_default",
    "strict_type",
]


class AuthoringError(ValueError):
    """What an agent's file says cannot work; raised while the file is loaded."""


class BadArguments(ValueError):
    """The arguments do not fit the tool: the model is told why, nothing was called."""


MAX_SECONDS = 366 * 86_400  # longer is a typing error; it also keeps every instant printable


def authors_name(name: object, what: str) -> str:
    try:
        return check_name(name, what)
    except InvalidParameter as error:
        raise AuthoringError(f"{what} {name!r:.80}: {error.detail}") from None


def authors_text(value: object, what: str) -> None:
    if not isinstance(value, str):
        raise AuthoringError(f"{what} is a text")
    try:
        validate(value)
    except UnsupportedValue as error:
        raise AuthoringError(f"{what} cannot be stored: {error}") from None


def authors_seconds(value: float | None, what: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AuthoringError(f"{what} is a number of seconds, not {value!r:.40}")
    if not (math.isfinite(value) and 0 < value <= MAX_SECONDS):
        raise AuthoringError(f"{what} is above 0 and at most {MAX_SECONDS}, not {value}")


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Parameters:
    """What a tool takes beside its context: names, JSON Schema, and a strict reading of values."""

    def __init__(self, fn: Callable[..., Any], name: str, context: type) -> None:
        first, *rest = _parameters(fn, name)
        _check_context(fn, name, first, context)
        hints = _hints(fn, name, [p.name for p in rest])
        self.names: tuple[str, ...] = tuple(p.name for p in rest)
        self.defaults: dict[str, Any] = {}  # as plain values
        fields: list[Any] = []
        for parameter in rest:
            kind = hints.get(parameter.name, Any)
            if parameter.default is inspect.Parameter.empty:
                fields.append((parameter.name, kind))
                continue
            self.defaults[parameter.name] = plain_default(
                parameter.default, f"tool {name!r}: the default of {parameter.name!r}"
            )
            fresh = partial(copy.deepcopy, parameter.default)
            fields.append((parameter.name, kind, msgspec.field(default_factory=fresh)))
        try:
            self._struct = msgspec.defstruct(
                f"{name}_args", fields, forbid_unknown_fields=True, kw_only=True
            )
            self.schema = json_schema(self._struct)
        except TypeError as error:
            raise AuthoringError(f"tool {name!r}: {error}") from None
        for key, value in self.defaults.items():
            self.schema["properties"][key]["default"] = value

    def bind(self, args: object) -> dict[str, Any]:
        """Keyword arguments for the function, defaults filled in; raises BadArguments."""
        try:
            # The fold has these arguments too: what the function does to its own must not show.
            bound = msgspec.convert(copied(args), self._struct)
        except msgspec.ValidationError as error:
            raise BadArguments(str(error)) from None
        return {name: getattr(bound, name) for name in self.names}


def _parameters(fn: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    found = list(inspect.signature(fn).parameters.values())
    if not found or found[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise AuthoringError(f"tool {name!r}: the first parameter must be the context")
    for parameter in found[1:]:
        if parameter.kind not in _NAMED:
            raise AuthoringError(
                f"tool {name!r}: {parameter} cannot be sent by name; spell the parameters out"
            )
    return found


def _check_context(
    fn: Callable[..., Any], name: str, first: inspect.Parameter, context: type
) -> None:
    """A forgotten context would swallow the first argument: find it before a call does."""
    try:
        kind = _hints(fn, name, [first.name]).get(first.name, context)
    except AuthoringError:
        return  # imported for type checkers only
    forgotten = isinstance(kind, type) and not issubclass(context, kind)
    if forgotten or first.default is not inspect.Parameter.empty:
        raise AuthoringError(f"tool {name!r}: the first parameter must be the context, not {first}")


def _hints(fn: Callable[..., Any], name: str, wanted: list[str]) -> dict[str, Any]:
    """The types of some parameters only: the context's may exist for type checkers alone."""
    function = inspect.unwrap(fn)
    function = getattr(function, "__func__", function)
    annotations = inspect.get_annotations(function)

    def probe() -> None: ...

    probe.__annotations__ = {key: annotations[key] for key in wanted if key in annotations}
    try:
        closure: dict[str, Any] = dict(inspect.getclosurevars(function).nonlocals)
    except TypeError:
        closure = {}
    try:
        return typing.get_type_hints(
            probe, getattr(function, "__globals__", {}), closure, include_extras=True
        )
    except Exception as error:
        raise AuthoringError(f"tool {name!r}: a type cannot be read: {error}") from None


def copied(value: Any) -> Any:
    """A plain value whose dicts and lists are the reader's own."""
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list | tuple) else value


def plain_default(value: object, what: str) -> Any:
    """A default as JSON and msgpack can hold it, or AuthoringError."""
    try:
        shown = msgspec.to_builtins(value, builtin_types=(bytes,))
        validate(shown)
    except (TypeError, UnsupportedValue) as error:
        raise AuthoringError(f"{what} cannot be stored: {error}") from None
    return copied(shown)


def strict_type(kind: Any) -> Any:
    """A dataclass or TypedDict as a type that refuses unknown fields; other types as they are."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = [_strict_field(field, hints[field.name]) for field in dataclasses.fields(kind)]
    elif typing.is_typeddict(kind):
        fields = []
        for key, hint in typing.get_type_hints(kind).items():
            optional = key in kind.__optional_keys__
            fields.append(
                (key, hint | msgspec.UnsetType, msgspec.UNSET) if optional else (key, hint)
            )
    else:
        return kind
    return msgspec.defstruct(kind.__name__, fields, forbid_unknown_fields=True, kw_only=True)


def _strict_field(field: dataclasses.Field[Any], hint: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return (field.name, hint, field.default)
    if field.default_factory is not dataclasses.MISSING:
        return (field.name, hint, msgspec.field(default_factory=field.default_factory))
    return (field.name, hint)


def json_schema(kind: Any) -> dict[str, Any]:
    """JSON Schema of a type, at its top the object itself; raises TypeError if there is none."""
    (top,), parts = schema_components([kind], ref_template="#/$defs/{name}")
    shown = dict(top)
    if set(shown) == {"$ref"}:
        shown = dict(parts.pop(shown["$ref"].removeprefix("#/$defs/")))
    return shown | {"$defs": parts} if parts else shown


def is_generator(fn: Callable[..., Any]) -> bool:
    """Whether a call would only start an iteration."""
    return inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)
