"""Crash an agent at every boundary of a run, and compare each time with the twin that lived.

Always: a boundary stands before and after each append (intent, outcome, decision) and before and
after each call of a tool or a model; every crash that was asked for has happened, or this fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stillrun.agent import Agent
from stillrun.essence import essence
from stillrun.values import same

from .people import Act
from .performing import Made
from .play import CLOSED, DEFAULT_SEED, Play, Result

__all__ = ["CrashReport", "Difference", "crash_everywhere"]

AGAIN_WITHIN = 8  # boundaries after the first crash at which a second one is tried


class Difference(AssertionError):
    """A crash changed what the run came to. `place`: where it was killed; `what`: the difference;
    `log`: the run's log."""

    def __init__(self, place: str, what: str, log: str) -> None:
        super().__init__(f"killed {place}: {what}\n\n{log}")
        self.place, self.what, self.log = place, what, log


@dataclass(frozen=True, kw_only=True)
class CrashReport:
    """`places`: where it was killed; `crashes`: how often; `twin`: the run that lived."""

    places: list[str]
    crashes: int
    twin: Result


def crash_everywhere(
    agent: Agent,
    input: Any = None,
    *,
    people: Sequence[Act] = (),
    model: Any = None,
    seed: int = DEFAULT_SEED,
    secrets_dir: Path | None = None,
    fresh: Callable[[], object] | None = None,
    outside: Callable[[], Any] | None = None,
    twice: bool = False,
) -> CrashReport:
    """Run the agent once undisturbed, then once per boundary with a crash there.

    Compared with the undisturbed twin: the end and everything said, called, asked and answered
    (`essence`), which writes took effect, and that none took effect twice. At every other place
    the store is restarted too. twice: crash a second time soon after the first, which reaches the
    inside of recoveries.

    fresh: resets what the author's fakes remember; called before each run. outside: what the fakes
    hold afterwards (mails sent, money moved), compared as it is. Without it, a write that was made
    again after it had taken effect must at least have looked at `ctx.key`.

    Raises Difference at the first place where a crash shows; ValueError where two undisturbed
    runs differ, or do not end.
    """

    def play(kill_at: frozenset[int] = frozenset(), store_too: bool = False) -> tuple[Result, Any]:
        if fresh is not None:
            fresh()
        played = Play(
            agent,
            people=people,
            model=model,
            secrets_dir=secrets_dir,
            kill_at=kill_at,
            store_too=store_too,
        ).run(input, seed)
        return played, None if outside is None else _plain(outside(), played.log_id)

    twin = play()
    if twin[0].status not in CLOSED:
        raise ValueError(f"the run does not end, it is {twin[0].status}\n\n{twin[0].log}")
    if (what := _difference(twin, play(), has_outside=outside is not None)) is not None:
        raise ValueError(
            f"two runs without any crash differ: {what}; a fake that remembers needs `fresh`, and "
            "what a fake answers must be a function of its arguments and the key"
        )
    crashes = 0
    places = list(twin[0].places)
    for first in range(1, len(places) + 1):
        seconds = range(first + 1, first + 1 + AGAIN_WITHIN) if twice else ()
        for second in (None, *seconds):
            kill_at = frozenset({first} if second is None else {first, second})
            played = play(kill_at, store_too=first % 2 == 0)
            kills = played[0].kills
            if not kills or (second is None and len(kills) != 1):
                raise AssertionError(f"no crash {places[first - 1]}: the play went another way")
            crashes += len(kills)
            what = _difference(twin, played, has_outside=outside is not None)
            if what is not None:
                raise Difference(", then ".join(kills), what, played[0].log)
    return CrashReport(places=places, crashes=crashes, twin=twin[0])


def _difference(
    twin: tuple[Result, Any], other: tuple[Result, Any], *, has_outside: bool
) -> str | None:
    """The first difference in words, or None."""
    (lived, its_outside), (killed, other_outside) = twin, other
    if (again := _repeated(killed.calls, has_outside)) is not None:
        return again
    shown = [_plain(essence(each.state), each.log_id) for each in (lived, killed)]
    if (found := _first(shown[0], shown[1], "")) is not None:
        return found
    if (found := _first(_applied(lived), _applied(killed), "/writes")) is not None:
        return found
    return _first(its_outside, other_outside, "/outside")


def _repeated(calls: list[Made], has_outside: bool) -> str | None:
    """A write that was made again although it had taken effect, and could do harm."""
    done: dict[str, Made] = {}
    for call in calls:
        if not call.writes:
            continue
        before = done.get(call.key)
        if before is not None and call.on_doubt != "retry":
            return (
                f"{call.name} ({call.effect}) was called again although it had taken effect: what "
                f"on_doubt={call.on_doubt!r} answered was not so"
            )
        if before is not None and not has_outside and not (before.read_key and call.read_key):
            return (
                f"{call.name} ({call.effect}) was called again after it had taken effect, and "
                "never looked at ctx.key: send it to the callee, or show by `outside` that a "
                "repeat is safe"
            )
        if call.took_effect:
            done[call.key] = call
    return None


def _applied(result: Result) -> list[list[str]]:
    """The writes that took effect, as (ordinal and args digest, tool)."""
    keys = {(".".join(c.key.rsplit(".", 2)[1:]), c.name) for c in _took_effect(result)}
    return sorted([key, name] for key, name in keys)


def _took_effect(result: Result) -> list[Made]:
    return [call for call in result.calls if call.writes and call.took_effect]


def _plain(value: Any, log_id: str) -> Any:
    """The value with the log's random id, which is in every key, taken out."""
    if isinstance(value, str):
        return value.replace(log_id, "LOG")
    if isinstance(value, dict):
        return {_plain(key, log_id): _plain(item, log_id) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, log_id) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(item, log_id) for item in value), key=repr)
    return value


def _first(one: Any, two: Any, pointer: str) -> str | None:
    """The first place at which two values differ, as a pointer and both values."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in [*one, *(key for key in two if key not in one)]:
            if key not in one or key not in two:
                has = "only the twin has it" if key in one else "the twin has it not"
                return f"{pointer}/{key}: {has}: {(one if key in one else two)[key]!r:.200}"
            if (found := _first(one[key], two[key], f"{pointer}/{key}")) is not None:
                return found
        return None
    if isinstance(one, list) and isinstance(two, list):
        for at, (left, right) in enumerate(zip(one, two, strict=False)):
            if (found := _first(left, right, f"{pointer}/{at}")) is not None:
                return found
        if len(one) != len(two):
            extra = (one if len(one) > len(two) else two)[min(len(one), len(two))]
            return f"{pointer}: {len(two)} instead of the twin's {len(one)}: {extra!r:.200}"
        return None
    equal = same(one, two) if _is_scalar(one) and _is_scalar(two) else one == two
    return None if equal else f"{pointer}: {two!r:.200} instead of the twin's {one!r:.200}"


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool | bytes)
