"""The moments at which something dies, made from a seed: by progress of the run, never by time.

Always: the same seed is the same moment; the first `STRATA` seeds meet every place with every
victim, the rest goes on with other numbers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, get_args

from .tap import When

__all__ = ["STRATA", "Moment", "Place", "Second", "Victim", "moment_of"]

Victim = Literal["agent", "store", "both"]
Place = Literal["hold", "booking", "mail", "append", "claim", "world", "approve", "seq"]
Late = Literal["never", "at once", "after takeover"]

VICTIMS: tuple[Victim, ...] = get_args(Victim)
# What each place has of itself, over a run of about 18 appends, 9 calls of the world, 39 events.
MOST = {"append": 14, "claim": 1, "world": 8, "approve": 1, "seq": 34}


def _strata() -> list[tuple[Place, When, Victim]]:
    weights: dict[Place, int] = {"hold": 1, "booking": 1, "mail": 1, "append": 3, "claim": 1}
    weights |= {"world": 1, "approve": 1, "seq": 1}
    whens: tuple[When, ...] = get_args(When)
    return [
        (place, when, victim)
        for place, times in weights.items()
        for _ in range(times)
        for when in whens
        for victim in VICTIMS
    ]


STRATA = _strata()
assert len(STRATA) == 60


@dataclass(frozen=True, kw_only=True)
class Second:
    """Another death while the run recovers from the first: at the nth request at that door."""

    victim: Victim
    door: Literal["store", "world"]
    when: When
    nth: int


@dataclass(frozen=True, kw_only=True)
class Moment:
    """hold, booking, mail: the world's gate before or after it applies the write. append, claim,
    world, approve: the nth such request, before the server sees it or before the answer is heard.
    seq: when the head has reached `nth`; nothing is stopped.

    `late`: what becomes of a dead process's last request, which was on its way. `asked`: a gate is
    opened only after the next process has asked for the key.
    """

    seed: int
    trip: int
    place: Place
    when: When
    victim: Victim
    nth: int
    late: Late
    asked: bool
    second: Second | None

    @property
    def is_gate(self) -> bool:
        return self.place in ("hold", "booking", "mail")

    def __str__(self) -> str:
        where = f"{self.when} {self.place}" if self.place != "seq" else "seq"
        more = f", then {self.second}" if self.second else f", late {self.late}"
        return f"seed {self.seed}: {self.victim} dies {where} {self.nth} of trip {self.trip}{more}"


def moment_of(seed: int) -> Moment:
    dice = random.Random(seed)
    place, when, victim = STRATA[seed % len(STRATA)]
    second = None
    if dice.random() < 0.4:
        second = Second(
            victim=dice.choice(VICTIMS),
            door=dice.choice(("store", "store", "world")),
            when=dice.choice(("before", "after")),
            nth=dice.randint(1, 3),
        )
    lates: tuple[Late, ...] = get_args(Late)
    return Moment(
        seed=seed,
        trip=dice.randrange(3),
        place=place,
        when=when,
        victim=victim,
        nth=dice.randint(3 if place == "seq" else 1, MOST.get(place, 1)),
        late=dice.choice(lates) if second is None else "never",
        asked=dice.random() < 0.5,
        second=second,
    )
