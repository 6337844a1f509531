"""Work on one held run: fold, decide, append, then call; one thread, one writer, one epoch.

Always: a call starts only after the store has acknowledged its intent and while the lease holds
(I6); outcomes go out with the next append, as facts, and wait for nothing else; what was refused is
decided anew from what the store has; once the epoch is superseded nothing starts any more (I5).
"""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal

from stillrun import wire
from stillrun.agent import Agent
from stillrun.client import Interrupted, LeaseState, StoreClient
from stillrun.errors import Fenced, Refused, RunClosed, RunDeleted, StillrunError
from stillrun.events import Data, EffectFailed, EffectIntended, ModelReply, Problem, RunFailed
from stillrun.state import Control, Effect, State
from stillrun.tools import AUTHORS

from .budgets import priced
from .calls import call_of, hook_call_of, model_request, not_started, still_says
from .children import ask_child, cancel_children, tell_parent
from .decide import Decision, decide_next
from .figures import Figures
from .flights import Flights
from .hand_in import hand_in
from .leases import HeldLease
from .models import ModelFactory
from .outcomes import UNTAKABLE, facts_of, facts_of_hook, lost
from .patience import patiently
from .run_log import RunLog
from .slots import Places, Slots
from .tools import Call, MayStart, Outcome, Performer, storable_text

__all__ = ["RunWork", "pause_id"]

_log = logging.getLogger("stillrun.agent")

IDLE_POLL_S = 5.0  # nothing to do but to hear of news: short, so that a drain is not held up
MAX_REFUSALS = 5  # in a row, with nothing new to fold: a defect, another worker may do better
REFUSAL_WAIT_S = 0.2
MAX_THINK_S = 30.0  # a decide is a pure function of the state: one that takes longer will not end

Why = Literal["released", "draining"] | None


def pause_id(control: Control) -> str:
    """The same for every holder at this seq: one that was overtaken pauses nothing later on."""
    named = f"pause.{control.run}.{control.log_id}.{control.seq}"
    return hashlib.sha256(named.encode()).hexdigest()[:32]


class LetGo(Exception):
    """Nothing more to do here. `why` ends the lease; None where it is over already."""

    def __init__(self, why: Why, text: str) -> None:
        super().__init__(text)
        self.why: Why = why


class RunWork:
    """One grant of one run. `work` runs in a thread of its own; the other methods are for others.

    `draining`: start nothing new, let calls in flight finish, record them; release the lease when
    `claims_over`, or the worker's own last claim would be granted the run again. `stop`: end now.
    `clock` is the monotonic one, for leases and timeouts; `clock_ms` counts on from the store's
    hour, for retries. `hold_back_s`: how long the lease is kept after a defect, so that one moment
    of trouble does not take all the grants that a run has. `late_over`: no late call is left.
    """

    def __init__(
        self,
        grant: wire.Grant,
        agent: Agent,
        lease: HeldLease,
        *,
        client: StoreClient,
        worker: str,
        performer: Performer,
        models: ModelFactory,
        slots: Slots,
        draining: threading.Event,
        claims_over: threading.Event,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
        clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        hold_back_s: float = 1.0,
        late_over: Callable[[RunWork], None] = lambda work: None,
        figures: Figures | None = None,
    ) -> None:
        self.run, self.epoch, self.lease = grant.run, grant.epoch, lease
        self._first = grant.first
        self._agent, self._client, self._worker = agent, client, worker
        self._performer, self._models = performer, models
        self._draining, self._claims_over, self._stop = draining, claims_over, stop
        self._clock, self._hold_back_s, self._late_over = clock, hold_back_s, late_over
        self._figures = figures or Figures()
        self.broke = False  # ended by a defect, or by what looks like one
        self._log = RunLog(client, grant.run, grant.epoch, stop, clock_ms)
        self._flights = Flights(clock)
        self._changed = self._flights.changed
        self._head_seq = 0  # as the last renewal had it
        self._late: dict[Call, float] = {}  # go on although this work is over -> worth a wait until
        self._thread_id = 0
        self._thinks_since: float | None = None  # the author's code decides
        self._is_stuck = False
        self._intended: deque[EffectIntended] = deque()  # acknowledged, not started yet
        self._refusals = 0
        self._places = Places(slots, grant.run, grant.epoch, self.wake)

    # --- for others

    def heard(self, news: LeaseState) -> None:
        """A renewal's answer: the run has a new head, or the lease is lost."""
        with self._changed:
            self._head_seq = max(self._head_seq, news.head_seq)
            self._changed.notify_all()

    def wake(self) -> None:
        """Look again, for one who has set an event."""
        with self._changed:
            self._changed.notify_all()

    def calls_in_flight(self) -> int:
        """Calls of this run that have not ended."""
        return self._flights.count()

    def late_until(self) -> float | None:
        """Until when it is worth to wait for calls that this work has left behind; None: no call.

        Of the clock that was given. A call that hangs is not waited for.
        """
        with self._changed:
            return max(self._late.values(), default=None)

    def is_stuck(self) -> bool:
        """Whether the author's code decides for too long; then the lease is not renewed any more.

        The run is seen to stand, and goes to others; a thread cannot be ended from outside.
        """
        since = self._thinks_since
        if since is None or self._clock() - since < MAX_THINK_S:
            return False
        if not self._is_stuck:
            self._is_stuck = True
            self.lease.lost = True
            frame = sys._current_frames().get(self._thread_id)
            stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
            self._say(logging.ERROR, f"given up: the agent decides for ever, now at\n{stack}")
        return True

    # --- the thread

    def work(self) -> None:
        """Work until the lease is over; never raises."""
        why: Why = "released"
        self._thread_id = threading.get_ident()
        try:
            self._log.load(first=self._first)
            self._end_if_over()
            while True:
                self._turn()
        except LetGo as end:
            why = end.why
            self.broke = why == "released"
            # The end of a run is in its log; what went wrong with the work on it is only here.
            level = logging.DEBUG if end.why is None else logging.INFO
            self._say(level, f"let go: {end}")
        except (Fenced, RunClosed, RunDeleted) as error:
            why = None
            self._say(logging.INFO, f"stopped: {error.detail}")
        except Interrupted:
            why = "draining"
        except StillrunError as error:
            self.broke = True
            self._say(logging.ERROR, f"given up: {error.code}: {error.detail}")
        except AUTHORS:  # of code of theirs that nothing nearer has caught
            self.broke = True
            _log.exception("run=%s epoch=%d given up: a defect", self.run, self.epoch)
        self._leave(why)

    def _say(self, level: int, text: str) -> None:
        extra = {"run": self.run, "epoch": self.epoch}
        _log.log(level, "run=%s epoch=%d %s", self.run, self.epoch, text, extra=extra)

    def _turn(self) -> None:
        """One round: what has arrived, what to do about it, one append, and the calls it allows."""
        stopped = self._must_not_start(self._log.state.control)
        for outcome, in_time in self._flights.take(give_back=stopped):
            self._take(outcome, in_time)
        decisions, asked, pause = self._decide()
        if self._log.has_facts or decisions:
            self._append(decisions)
        elif pause is not None:
            self._pause(pause)
        elif not asked:
            self._rest()
        self._start_intended()
        self._end_if_over()

    def _decide(self) -> tuple[list[Data], bool, str | None]:
        """Decisions on top of the facts that wait, whether a callee was asked about a doubt, and
        why the run is to be paused."""
        now_ms = self._log.now_ms()
        state = self._log.ahead(now_ms)
        self._places.crowded = False
        if self._draining.is_set() or self.lease.lost or self._intended or not self._log.is_mine:
            return [], False, None
        astray = self._astray(state)
        if astray:
            self._log.note(astray)
            state = self._log.ahead(now_ms)
        decision = self._decide_with_places(state, now_ms)
        if decision.facts:
            for fact in decision.facts:
                self._log.note([fact])
            state = self._log.ahead(now_ms)
            decision = self._decide_with_places(state, now_ms)
        asked = [self._ask(state.control.effects[effect]) for effect in decision.reconcile]
        return list(decision.events), any(asked), decision.pause

    def _decide_with_places(self, state: State, now_ms: int) -> Decision:
        """A decision whose calls have their places; other runs of this worker take some too."""
        while True:
            free = self._places.free(self._agent.tools.values())
            decision = self._think(state, now_ms, free)
            self._places.crowded = decision.crowded
            if self._places.reserve(decision.events, self._agent.tools):
                return decision

    def _think(self, state: State, now_ms: int, free: Mapping[str, int]) -> Decision:
        self._thinks_since = self._clock()
        try:
            return decide_next(self._agent, state, now_ms, self._flights.busy(), free)
        finally:
            self._thinks_since = None

    def _astray(self, state: State) -> list[Data]:
        """Doubts about calls that are open in the log and made by nobody: a net for defects."""
        return [
            lost(self._call_again(effect))
            for effect in state.control.effects.values()
            if effect.status == "open"
            and effect.epoch == self.epoch
            and not self._flights.knows(effect.effect)
        ]

    def _call_again(self, effect: Effect) -> Call:
        """The call of an effect as its state has it."""
        return Call(
            run=self.run,
            effect=effect.effect,
            key=effect.key or "",
            attempt=effect.attempt,
            epoch=self.epoch,
            kind=effect.kind,
            name=effect.name,
            timeout_s=0.0,
            writes=effect.writes,
            on_doubt=effect.on_doubt,
        )

    def _take(self, outcome: Outcome, in_time: bool) -> None:
        """Note the facts of an outcome, if it still says something."""
        call = outcome.call
        self._figures.count("calls", call.kind, outcome.what)
        self._places.give(call)  # of a call that timed out too: it may hang for ever
        effect = self._log.state.control.effects.get(call.effect)
        if call.kind == "hook" and outcome.what == "not_started" and self._draining.is_set():
            return  # the next holder asks
        if effect is None or not (in_time or still_says(outcome, effect)):
            self._say(logging.INFO, f"a late answer of {call.name} says nothing new")
        elif call.kind == "hook":
            self._log.note(facts_of_hook(outcome, effect, self._put_blob), outcome)
        else:
            self._log.note(facts_of(outcome, self._put_blob), outcome)

    def _put_blob(self, data: bytes) -> str:
        return patiently(lambda: self._client.put_blob(data, stop=self._stop), self.run)

    # --- appends

    def _append(self, decisions: list[Data]) -> None:
        try:
            taken, moved = self._log.append(decisions)
        except UNTAKABLE as error:
            self._misshapen(error, decisions)
            return
        if taken:
            self._figures.count("steps", by=int(bool(decisions)))
            failed = {data.effect for data in decisions if isinstance(data, EffectFailed)}
            intents = [data for data in decisions if isinstance(data, EffectIntended)]
            self._intended += [data for data in intents if data.effect not in failed]
        else:
            self._places.keep_only(self._intended)
        self._count(taken or moved or not (decisions or self._log.has_facts))

    def _pause(self, reason: str) -> None:
        """Pause the run as a person would; all facts have landed. The next holder of a run whose
        worker died before it decides the same, from the same state."""
        if not self._lease_holds():  # another may hold the run by now: a renewal tells
            with self._changed:
                self._changed.wait(REFUSAL_WAIT_S)
            return
        control = self._log.state.control
        by = wire.By(by=self._worker, reason=reason, id=pause_id(control))
        try:
            paused = patiently(lambda: self._client.pause(self.run, by, stop=self._stop), self.run)
        except Refused as error:
            if isinstance(error, RunClosed | RunDeleted) or error.status not in (409, 422):
                raise
            self._count(self._log.after_refusal(error))
        else:
            self._say(logging.WARNING, f"paused: {reason}")
            self._count(self._log.catch_up(paused["head_seq"]))

    def _count(self, progress: bool) -> None:
        """A defect that is refused again and again must not spin: the run is given back."""
        if progress:
            self._refusals = 0
            return
        self._refused()

    def _refused(self) -> None:
        self._refusals += 1
        if self._refusals > MAX_REFUSALS:
            raise LetGo("released", f"refused {self._refusals} times with nothing new to fold")
        if self._refusals > 1:
            # The lease may be over without an event yet: the next renewal tells.
            with self._changed:
                self._changed.wait(REFUSAL_WAIT_S)

    def _misshapen(self, error: Refused, decisions: list[Data]) -> None:
        """An event that the store can never take: the facts land all the same, the run fails."""
        if self._log.has_facts and decisions:
            self._append([])
        elif decisions and not _is_failure_for(decisions[0], error):
            problem = Problem(type=error.code, message=storable_text(error.detail))
            self._append([RunFailed(error=problem)])
        elif self._log.has_facts:
            if self._log.append_singly():
                self._refusals = 0
            else:
                self._refused()
        else:
            raise error

    # --- calls

    def _start_intended(self) -> None:
        """Start what is acknowledged; what must not start any more is given back as not done."""
        control = self._log.state.control
        while self._intended:
            stopped = self._must_not_start(control)
            if not stopped and not self._lease_holds():
                return  # until a renewal answers
            intended = self._intended.popleft()
            self._places.begin(intended)
            effect = control.effects.get(intended.effect)
            if effect is None or effect.attempt != intended.attempt:
                self._places.give(intended)
                continue
            call = call_of(self._agent, self.run, self.epoch, intended)
            self._flights.begin(call)
            if stopped or effect.status != "open":
                self.arrived(not_started(call))
            elif call.kind == "model":
                question = self._question(effect)
                self._performer.call_model(call, question, self.arrived, self._may_start(call))
            else:
                tool, may_start = self._agent.tools[effect.name], self._may_start(call)
                if intended.mode == "simulated":
                    tool = tool.pretending()
                if tool.agent is not None:
                    self._performer.look(call, self._child(call, effect), self.arrived, may_start)
                    continue
                self._performer.call_tool(
                    call, tool, effect.args, self._vars(), self.arrived, may_start
                )

    def _must_not_start(self, control: Control) -> bool:
        stopped = self._draining.is_set() or self.lease.lost or not self._log.is_mine
        return stopped or control.cancel is not None or control.paused is not None

    def _may_start(self, call: Call) -> MayStart:
        """Whether the call may still be made, asked by the thread that is about to make it."""

        def may_start() -> bool:
            if self._stop.is_set() or self._draining.is_set() or not self._lease_holds():
                return False
            control = self._log.state.control
            if call.kind != "hook" and self._must_not_start(control):
                return False
            return self._flights.start(call)

        return may_start

    def _question(self, effect: Effect) -> Callable[[], ModelReply]:
        request = model_request(self._agent, self._log.state, effect)
        # Which model it is, is looked up within the call: what goes wrong there is its outcome.
        agent = self._agent
        return lambda: priced(agent, effect.name, self._models.for_agent(agent).reply(request))

    def _child(self, call: Call, effect: Effect) -> Callable[[], Outcome]:
        tool, seed = self._agent.tools[effect.name], self._log.state.control.seed
        return lambda: ask_child(self._client, call, tool, effect.args, seed, self._stop)

    def _lease_holds(self) -> bool:
        return self.lease.may_start(self._clock())

    def _vars(self) -> Mapping[str, Any]:
        content = self._log.state.content
        return {} if content is None else content.vars

    def _ask(self, effect: Effect) -> bool:
        """Ask the callee whether an effect in doubt has happened; a question is no effect."""
        if not self._lease_holds():
            return False
        tool = self._agent.tools[effect.name]
        call = hook_call_of(self._agent, self.run, self.epoch, effect)
        self._flights.begin(call)
        self._performer.ask_hook(
            call, tool, effect.args, self._vars(), self.arrived, self._may_start(call)
        )
        return True

    def arrived(self, outcome: Outcome) -> None:
        """An outcome has come, from whatever thread. After the end it is handed in from here."""
        self._places.give(outcome.call)
        if self._flights.add(outcome):
            return
        with self._changed:
            if outcome.call not in self._late:
                return  # a hook's, or of a call that was given back before it began
        # Not in this thread: it may be the one of all async tools.
        name = f"late {self.run}/{outcome.call.effect}"
        late = threading.Thread(target=self._late_result, args=(outcome,), name=name, daemon=True)
        try:
            late.start()
        except RuntimeError as error:
            self._say(logging.ERROR, f"not handed in: {outcome.call}: {error}")
            self._forget_late(outcome.call)

    def _late_result(self, outcome: Outcome) -> None:
        try:
            hand_in(self._client, self._worker, outcome, self._stop)
        finally:
            self._forget_late(outcome.call)

    def _forget_late(self, call: Call) -> None:
        with self._changed:
            del self._late[call]
            is_over = not self._late
        if is_over:
            self._late_over(self)

    # --- waiting, and the end

    def _rest(self) -> None:
        """Nothing to do now: wait for an outcome, a renewal's news, a retry that falls due."""
        if self._is_over():
            return
        quiet = self._flights.is_empty and not self._intended and self._lease_holds()
        if self._places.crowded:
            self._places.wait()
        elif quiet and not self._draining.is_set():
            try:
                self._log.listen(self._rest_s(), self._draining)
            except Interrupted:
                if self._stop.is_set():
                    raise
            return
        with self._changed:
            news = self._flights.has_news or self._head_seq > self._log.state.control.seq
            news = news or self._places.has_news
            if not (news or self._stop.is_set() or self._is_over()):
                self._changed.wait(self._rest_s())
            head_seq = self._head_seq
        self._log.catch_up(head_seq)

    def _rest_s(self) -> float:
        """Until the next instant at which time alone changes something."""
        left_s = [IDLE_POLL_S]
        if (end_s := self._flights.next_end_s()) is not None:
            left_s.append(end_s)
        now_ms = self._log.now_ms()
        effects = self._log.state.control.effects.values()
        retries = [e.retry_at_ms for e in effects if e.retry_at_ms is not None]
        left_s += [(at_ms - now_ms) / 1000 for at_ms in retries if at_ms > now_ms]
        return max(0.01, min(left_s))

    def _is_over(self) -> bool:
        if not self._log.is_mine or self.lease.lost:
            return True
        if not (self._draining.is_set() and self._claims_over.is_set()):
            return False
        return not self._flights.has_calls and not self._intended

    def _end_if_over(self) -> None:
        if self._stop.is_set():
            raise Interrupted("stopped")
        with self._changed:
            if self._flights.has_news:
                return
        if not self._is_over() or (self._log.has_facts and self._log.is_mine):
            return
        if not self._log.is_mine:
            ended = self._log.state.control.ended
            raise LetGo(None, "nothing to do for now" if ended is None else ended)
        if self.lease.lost:
            raise LetGo(None, "the lease is lost")
        raise LetGo("draining", "stopping")

    def _tell_family(self) -> None:
        """The run is over: its parent may go on, and after a cancel its children end too."""
        control = self._log.state.control
        tell_parent(self._client, self._worker, control, self._stop)
        has_children = any(tool.agent is not None for tool in self._agent.tools.values())
        if has_children and control.ended == "cancelled":
            cancel_children(self._client, self._worker, self.run, self._stop)

    def _waits_no_more(self) -> bool:
        return self._stop.is_set() or self._draining.is_set() or self.lease.lost

    def _leave(self, why: Why) -> None:
        """Hand in what is left, then end the lease. Late results find their own way."""
        self._places.close()
        with self._changed:
            left, self._late = self._flights.close()
        left += self._log.unsent()
        calls = [call_of(self._agent, self.run, self.epoch, each) for each in self._intended]
        left += map(not_started, calls)
        for outcome in left:
            hand_in(self._client, self._worker, outcome, self._stop)
        if why is None:
            if self._log.loaded:
                self._tell_family()
            return
        if self.broke:
            # Released at once it would be granted at once, and break again: ten times in a moment.
            with self._changed:
                self._changed.wait_for(self._waits_no_more, self._hold_back_s)
        release = wire.ReleaseLease(worker=self._worker, epoch=self.epoch, why=why)
        retry_for_s = 0.0 if self._stop.is_set() else self.lease.ttl_s
        try:
            self._client.release(self.run, release, retry_for_s=retry_for_s)
        except StillrunError as error:
            self._say(logging.INFO, f"the lease runs out by itself: {error.detail}")


def _is_failure_for(decision: Data, error: Refused) -> bool:
    """Whether the run is failing for this very refusal: then its text is not the cause."""
    return isinstance(decision, RunFailed) and decision.error.type == error.code
