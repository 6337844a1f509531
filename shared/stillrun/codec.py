"""The only user of msgpack and JSON: events on disk, bodies on the wire, states in snapshots.

An event on disk, its seq implied by its place:

    [ id bin16 | type str | schema_version int | at_ms int | epoch int | data ]

Always: plain types only, no extension types, no fallback codec; a body decodes to values that
`validate` accepts or is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

from .errors import CorruptLog, InvalidBody, MalformedBody, UnknownEventType, UnsupportedValue
from .events import Event, event_class, is_dotted
from .schema import SCHEMA_VERSION, upcast
from .state import State
from .values import MAX_INT, from_rfc3339, plain, rfc3339, validate

__all__ = [
    "MSGPACK",
    "convert",
    "decode_event",
    "decode_json",
    "decode_msgpack",
    "decode_state",
    "decode_trusted",
    "decode_typed",
    "encode_event",
    "encode_json",
    "encode_msgpack",
    "encode_state",
    "event_from_wire",
    "event_to_wire",
    "plain_data",
    "typed_data",
]

MSGPACK = "application/vnd.msgpack"

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


class _OnDisk(msgspec.Struct, array_like=True, frozen=True):
    id: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    type: str
    schema_version: Annotated[int, msgspec.Meta(ge=1)]
    at_ms: int
    epoch: int
    data: msgspec.Raw


def _no_extension(code: int, data: memoryview) -> Any:
    """Nothing of ours has one: it must not pass for a value that an answer then cannot show."""
    raise msgspec.ValidationError(f"an extension of type {code}")


_on_disk = msgspec.msgpack.Decoder(_OnDisk)
_stored_data = msgspec.msgpack.Decoder(ext_hook=_no_extension)
_state = msgspec.msgpack.Decoder(State, ext_hook=_no_extension)
_data_decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}


def encode_event(event: Event) -> bytes:
    """The bytes of one event on disk."""
    data = msgspec.Raw(_encoder.encode(event.data))
    return _encoder.encode(
        _OnDisk(
            bytes.fromhex(event.id),
            event.type,
            event.schema_version,
            event.at_ms,
            event.epoch,
            data,
        )
    )


def decode_event(seq: int, payload: bytes) -> Event:
    """The event in these bytes, read forward to SCHEMA_VERSION.

    Raises UnknownSchema for a newer one, CorruptLog for bytes that are not an event.
    """
    try:
        stored = _on_disk.decode(payload)
        if stored.schema_version == SCHEMA_VERSION:
            decoder = _data_decoders.get(stored.type) or _data_decoder(stored.type)
            data = decoder.decode(stored.data)
        else:
            raw: Any = _stored_data.decode(stored.data)
            data = typed_data(stored.type, upcast(stored.type, stored.schema_version, raw))
    except (msgspec.DecodeError, InvalidBody, UnknownEventType, RecursionError) as error:
        raise CorruptLog(f"seq {seq} is not a readable event: {error}", seq=seq) from error
    return Event(
        seq=seq,
        id=stored.id.hex(),
        type=stored.type,
        schema_version=stored.schema_version,
        at_ms=stored.at_ms,
        epoch=stored.epoch,
        data=data,
    )


def _data_decoder(event_type: str) -> msgspec.msgpack.Decoder[Any]:
    """Of a type's data; those of our own types, which are few, are kept."""
    if is_dotted(event_type):
        return _stored_data
    decoder = msgspec.msgpack.Decoder(event_class(event_type), ext_hook=_no_extension)
    _data_decoders[event_type] = decoder
    return decoder


def typed_data(event_type: str, data: object, pointer: str = "") -> Any:
    """`data` as the struct of its built-in type; dotted types keep their value.

    Raises UnknownEventType, or InvalidBody with the JSON pointer of the wrong field.
    """
    if is_dotted(event_type):
        return data
    return convert(data, event_class(event_type), pointer)


def convert(value: object, kind: Any, pointer: str = "") -> Any:
    """`value` as a typed struct, or InvalidBody naming the place by JSON pointer."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise InvalidBody(pointer + _pointer(where.rstrip("`")), what) from None


def _pointer(path: str) -> str:
    """msgspec's `.events[0].type` as `/events/0/type`."""
    return path.replace("[...]", "").replace("[", "/").replace("]", "").replace(".", "/")


def event_to_wire(event: Event) -> dict[str, Any]:
    """The envelope as it travels: `at` in RFC 3339, data as plain values."""
    return {
        "seq": event.seq,
        "id": event.id,
        "type": event.type,
        "schema_version": event.schema_version,
        "at": rfc3339(event.at_ms),
        "epoch": event.epoch,
        "data": plain_data(event.data),
    }


def event_from_wire(item: dict[str, Any]) -> Event:
    """The inverse of `event_to_wire`."""
    return Event(
        seq=item["seq"],
        id=item["id"],
        type=item["type"],
        schema_version=item["schema_version"],
        at_ms=from_rfc3339(item["at"], "at"),
        epoch=item["epoch"],
        data=typed_data(item["type"], item["data"]),
    )


def encode_state(state: State) -> bytes:
    """A state's bytes for a snapshot."""
    return _encoder.encode(state)


def decode_state(data: bytes) -> State:
    """The inverse of `encode_state`; raises CorruptLog."""
    try:
        return _state.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptLog(f"a snapshot is not a readable state: {error}") from error


def encode_msgpack(value: object) -> bytes:
    """Any plain value or struct as msgpack."""
    return _encoder.encode(value)


def decode_msgpack(body: bytes, depth: int = 0) -> Any:
    """A msgpack body as plain values; raises MalformedBody or UnsupportedValue.

    `depth`: how deep the body counts as nested already, of MAX_DEPTH.
    """
    try:
        value = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise MalformedBody(f"not msgpack: {error}") from None
    except RecursionError:
        raise UnsupportedValue("", "nested too deep") from None
    validate(value, depth=depth)
    return value


def decode_trusted(body: bytes) -> Any:
    """As `decode_msgpack`, for what our own services have written: not validated again."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedBody(f"not msgpack: {error}") from None


def decode_typed(kind: type[T]) -> Callable[[bytes], T]:
    """What decodes msgpack of our own services straight to this struct; raises MalformedBody."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def decoded(body: bytes) -> T:
        try:
            return decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise MalformedBody(f"not a {kind.__name__}: {error}") from None

    return decoded


def encode_json(value: object, *, compact: bool = False) -> bytes:
    """JSON for people: indented by two with a final newline; one line when `compact`."""
    shown = plain(msgspec.to_builtins(value, builtin_types=(bytes,)))
    # A lone surrogate cannot get here (validate), NaN would not be JSON: fail rather than write it.
    if compact:
        return json.dumps(shown, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    return json.dumps(shown, ensure_ascii=False, allow_nan=False, indent=2).encode() + b"\n"


def _integer(digits: str) -> int:
    # int() refuses thousands of digits without saying where: `validate` names the place.
    return int(digits) if len(digits) <= 20 else MAX_INT + 1


def decode_json(body: bytes, depth: int = 0) -> Any:
    """The same of a JSON body, integers exact."""
    try:
        # Not msgspec: it reads an integer over 64 bits as a float, which loses digits in silence.
        # NaN and infinities become floats, for `validate` to refuse with their place.
        value = json.loads(body.decode(), parse_constant=float, parse_int=_integer)
    except UnicodeDecodeError as error:
        raise MalformedBody(f"not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise MalformedBody(f"not JSON: {error}") from None
    except RecursionError:
        raise UnsupportedValue("", "nested too deep") from None
    validate(value, depth=depth)
    return value


def plain_data(data: object) -> Any:
    """An event's data as plain values, bytes kept: what is compared and sent."""
    return msgspec.to_builtins(data, builtin_types=(bytes,))
