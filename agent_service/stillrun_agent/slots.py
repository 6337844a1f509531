"""Places of tools that take only so many calls at a time in one worker process.

Always: a place is taken before the intent is written and given back once, when its call has
returned or was given up, or was never made; giving back wakes those that wait for one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from stillrun.agent import Tool
from stillrun.events import Data, EffectFailed, EffectIntended

from .tools import Call

__all__ = ["Places", "Slots"]

Place = tuple[str, int, str, int]  # run, epoch, effect, attempt: one call


class Slots:
    """One per worker process. `freed` counts what was given back: whoever saw it change looks."""

    def __init__(self) -> None:
        self.freed = 0
        self._lock = threading.Lock()
        self._taken: dict[Place, Tool] = {}
        self._in_use: Counter[int] = Counter()  # by the identity of a tool; `_taken` keeps it alive
        self._waiting: set[Callable[[], None]] = set()

    def free(self, tools: Collection[Tool]) -> dict[str, int]:
        """How many calls of each tool may start, of those that have a limit."""
        with self._lock:
            return {
                tool.name: max(0, tool.concurrency - self._in_use[id(tool)])
                for tool in tools
                if tool.concurrency is not None
            }

    def take(self, wanted: Mapping[Place, Tool]) -> bool:
        """A place for each of these calls, or none at all: others may have been quicker."""
        with self._lock:
            more = Counter(id(tool) for tool in wanted.values())
            for tool in wanted.values():
                limit = tool.concurrency
                if limit is not None and self._in_use[id(tool)] + more[id(tool)] > limit:
                    return False
            self._taken.update(wanted)
            self._in_use += more
            return True

    def give(self, place: Place) -> None:
        """Give a place back; a call without one, or that gave it back before, changes nothing."""
        with self._lock:
            tool = self._taken.pop(place, None)
            if tool is None:
                return
            self._in_use[id(tool)] -= 1
            self.freed += 1
            waiting, self._waiting = self._waiting, set()
        for wake in waiting:
            wake()

    def wake_me(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when a place is given back; then look at `freed` before waiting."""
        with self._lock:
            self._waiting.add(wake)

    def forget(self, wake: Callable[[], None]) -> None:
        with self._lock:
            self._waiting.discard(wake)


class Places:
    """What one run holds of the slots, from the decision to intend a call until it is over.

    For the run's own thread, except `give`. `wake` is called when a place is given back that a
    `crowded` run waits for.
    """

    def __init__(self, slots: Slots, run: str, epoch: int, wake: Callable[[], None]) -> None:
        self._slots, self._run, self._epoch, self._wake = slots, run, epoch, wake
        self._reserved: set[Place] = set()  # of calls that have not begun
        self._freed = 0  # when was last looked
        self.crowded = False

    def free(self, tools: Collection[Tool]) -> dict[str, int]:
        """How many calls may start now of each tool that has a limit."""
        self._freed = self._slots.freed
        return self._slots.free(tools)

    def reserve(self, events: Sequence[Data], tools: Mapping[str, Tool]) -> bool:
        """A place for each call that is intended here; False: another run was quicker."""
        failed = {data.effect for data in events if isinstance(data, EffectFailed)}
        wanted = {
            self._place(data): tools[data.name]
            for data in events
            if isinstance(data, EffectIntended)
            and data.kind == "tool"
            and data.effect not in failed
            and tools[data.name].concurrency is not None
        }
        taken = self._slots.take(wanted)
        if taken:
            self._reserved |= wanted.keys()
        return taken

    def keep_only(self, intents: Iterable[EffectIntended]) -> None:
        """Give back what was reserved for other intents than these: they were not taken."""
        kept = {self._place(intent) for intent in intents}
        for place in self._reserved - kept:
            self._slots.give(place)
        self._reserved &= kept

    def begin(self, intent: EffectIntended) -> None:
        """Its call is made now; whoever hears of its end gives the place back."""
        self._reserved.discard(self._place(intent))

    def give(self, call: Call | EffectIntended) -> None:
        """The call is over, or was given up; from any thread."""
        # A question of a hook has no place, whatever its effect has.
        if call.kind != "hook":
            self._slots.give(self._place(call))

    def wait(self) -> None:
        """Be woken when a place is given back; look at `has_news` before you sleep."""
        self._slots.wake_me(self._wake)

    @property
    def has_news(self) -> bool:
        """Whether a place was given back since this run was crowded out."""
        return self.crowded and self._slots.freed != self._freed

    def close(self) -> None:
        """The work on the run is over; calls in flight keep their places until they return."""
        self._slots.forget(self._wake)
        self.keep_only(())

    def _place(self, call: Call | EffectIntended) -> Place:
        return (self._run, self._epoch, call.effect, call.attempt)
