"""Scripted behaviour: which faults meet a request.

Always: a function of the run, the kind, the key and the attempt; never of time. Several faults may
meet one request; they act in this order, whatever order they were written in: hold before, fail,
apply, hold after, then lose the reply or carry the crash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .bodies import boolean, check_fields, name
from .errors import InvalidBody

__all__ = ["KINDS", "Fault", "Turn", "parse_faults", "wire_faults"]

KINDS = ("hold", "booking", "mail")
MAX_DELAY_S = 60.0  # longer than any tool's timeout in the tests
MAX_FAULTS = 100  # a script is written by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Whose turn it is: how often this run has asked, and how often with this key.

    ``attempt`` counts the requests of the run and kind; ``key_attempt`` those with the same key;
    ``nth_key`` says which of the run's distinct keys of this kind it is. All count from 1."""

    kind: str
    attempt: int
    nth_key: int
    key_attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One line of a script.

    ``attempt`` None meets every attempt (a crash comes once all the same). With ``nth_key``, the
    attempt is that of the key: a run that was killed and came back meets the same faults as its
    twin, although it asked more often."""

    kind: str
    do: str
    attempt: int | None = None
    nth_key: int | None = None
    delay_s: float = 0.0
    gate: str = ""
    after: bool = False

    def meets(self, turn: Turn) -> bool:
        if self.kind != turn.kind:
            return False
        if self.nth_key is None:
            return self.attempt in (None, turn.attempt)
        return self.nth_key == turn.nth_key and self.attempt in (None, turn.key_attempt)

    @property
    def holds(self) -> bool:
        """Whether the request keeps a thread waiting."""
        return self.do in ("delay", "gate")


def parse_faults(body: Mapping[str, Any]) -> tuple[Fault, ...]:
    """The faults of ``{"faults": [...]}``, or ``InvalidBody``."""
    faults: list[Any] = check_fields(body, {"faults": _list})["faults"]
    return tuple(_parse_fault(fault, at) for at, fault in enumerate(faults))


def _parse_fault(fault: Any, at: int) -> Fault:
    if not isinstance(fault, dict):
        raise InvalidBody(f"fault {at} is not an object")
    try:
        own = OWN_FIELDS[_deed(fault.get("do"))]
        required = {"kind": _kind, "do": _deed, **own.required}
        optional = {"attempt": _count, "nth_key": _count, **own.optional}
        checked = check_fields(fault, required, optional)
    except (ValueError, InvalidBody) as error:
        raise InvalidBody(f"fault {at}: {error}") from None
    if "when" in checked:
        checked["after"] = checked.pop("when") == "after"
    return Fault(**checked)


def wire_faults(faults: Iterable[Fault]) -> list[dict[str, Any]]:
    """The faults as they may be put again."""
    return [_wire_fault(fault) for fault in faults]


def _wire_fault(fault: Fault) -> dict[str, Any]:
    wire: dict[str, Any] = {"kind": fault.kind, "do": fault.do}
    if fault.attempt is not None:
        wire["attempt"] = fault.attempt
    if fault.nth_key is not None:
        wire["nth_key"] = fault.nth_key
    if fault.do == "delay":
        wire |= {"delay_s": fault.delay_s, "after": fault.after}
    if fault.do == "gate":
        wire |= {"gate": fault.gate, "when": "after" if fault.after else "before"}
    return wire


def _list(value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_FAULTS:
        raise ValueError(f"must be a list of at most {MAX_FAULTS} faults")
    return value


def _kind(value: object) -> str:
    if value not in KINDS:
        raise ValueError(f"must be one of {', '.join(KINDS)}")
    return str(value)


def _deed(value: object) -> str:
    if not isinstance(value, str) or value not in OWN_FIELDS:
        raise ValueError(f"do must be one of {', '.join(OWN_FIELDS)}")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be an integer from 1")
    return value


def _delay(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number of seconds")
    if not 0 <= value <= MAX_DELAY_S:
        raise ValueError(f"must be between 0 and {MAX_DELAY_S:g} seconds")
    return float(value)


def _when(value: object) -> str:
    if value not in ("before", "after"):
        raise ValueError("must be before or after")
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """The fields that only one kind of deed has."""

    required: Mapping[str, Any]
    optional: Mapping[str, Any]


OWN_FIELDS: Mapping[str, _Own] = {
    "fail": _Own(required={}, optional={}),
    "lose_reply": _Own(required={}, optional={}),
    "delay": _Own(required={"delay_s": _delay}, optional={"after": boolean}),
    "crash": _Own(required={}, optional={}),
    "gate": _Own(required={"gate": name}, optional={"when": _when}),
}
