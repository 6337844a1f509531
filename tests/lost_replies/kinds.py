"""Every kind of request that a worker or a person sends, each on a run made ready for it.

Always: a kind's run has an agent of its own, so that claims of several kinds never meet; what is
sent is made once, ids included, and so is the same however often the client repeats it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stillrun import wire
from stillrun.client import StoreClient, new_id
from stillrun.events import make_key
from stillrun.schema import SCHEMA_VERSION
from stillrun.values import args_digest

__all__ = ["KINDS", "Kind", "Stage", "decision", "event"]

Send = Callable[[StoreClient], Any]


@dataclass
class Stage:
    """One run, its holder, and `direct`: a client whose replies arrive."""

    direct: StoreClient
    run: str
    epoch: int = 0
    worker: str = field(default_factory=lambda: f"w-{new_id()[:8]}")

    @property
    def agent(self) -> str:
        return f"agent-of-{self.run}"

    def head(self) -> int:
        return int(self.direct.run(self.run)["head_seq"])

    def start(self) -> None:
        self.direct.start_run(wire.StartRun(run=self.run, agent=self.agent, input={"n": 1}))

    def claim_body(self, worker: str | None = None) -> wire.ClaimRuns:
        return wire.ClaimRuns(
            worker=worker or self.worker,
            claim=new_id(),
            agents=[self.agent],
            schema_version=SCHEMA_VERSION,
            ttl_s=60.0,
        )

    def claim(self, worker: str | None = None) -> None:
        """Take the lease; the run must be runnable."""
        self.worker = worker or self.worker
        [grant] = self.direct.claim(self.claim_body())
        self.epoch = grant.epoch

    def hold(self) -> None:
        self.start()
        self.claim()

    def decide(self, *events: wire.NewEvent) -> None:
        """Decisions on the head as it is; they must be taken."""
        decisions = wire.Decisions(after=self.head(), events=list(events))
        body = wire.AppendEvents(epoch=self.epoch, decisions=decisions)
        assert self.direct.append(self.run, body).decisions == "taken"

    def open_effect(self, effect: str = "e1", **fields: Any) -> None:
        """Plan one call and intend it."""
        self.decide(self.plan(effect))
        self.decide(self.intent(effect, **fields))

    def doubt(self) -> None:
        """The holder has gone while a call was in flight: its end is for a person to say."""
        self.hold()
        self.open_effect()
        self.release()

    def release(self) -> None:
        self.direct.release(self.run, wire.ReleaseLease(worker=self.worker, epoch=self.epoch))

    def ask_approval(self, effect: str = "e1") -> None:
        self.hold()
        self.decide(self.plan(effect))
        self.decide(event("wait_opened", wait="w1", kind="approval", subject=effect, prompt="so?"))

    def plan(self, *effects: str) -> wire.NewEvent:
        calls = [{"effect": effect, "name": "book", "args": {}} for effect in effects]
        return event("plan_made", calls=calls)

    def intent(self, effect: str = "e1", **fields: Any) -> wire.NewEvent:
        digest = args_digest({})
        log_id = self.direct.run(self.run)["log_id"]
        data = {
            "effect": effect,
            "kind": "tool",
            "name": "book",
            "args": {},
            "args_digest": digest,
            "key": make_key(self.run, log_id, int(effect[1:]), digest),
            "on_doubt": "ask",
            "attempt": 1,
            "writes": True,
        }
        return event("effect_intended", **data | fields)

    # --- what may happen between a request and its repeat

    def close(self) -> None:
        """The run ends; whatever stands in the way is cleared as people would."""
        control = self.direct.state(self.run).state["control"]
        if "cancel" not in control:
            self.direct.cancel(self.run)
        if control.get("lease"):
            self.release()
        for effect in self.direct.effects(self.run, status="in_doubt"):
            said = wire.SettleEffect(outcome="did_not_happen", by="ana")
            self.direct.settle(self.run, effect["effect"], said)
        assert self.direct.run(self.run)["status"] == "cancelled"

    def fence(self) -> None:
        """Another worker has the run."""
        self.release()
        for effect in self.direct.effects(self.run, status="in_doubt"):
            said = wire.SettleEffect(outcome="did_not_happen", by="ana")
            self.direct.settle(self.run, effect["effect"], said)
        before = self.epoch
        self.claim(f"another-{self.run}")
        assert self.epoch > before


def event(event_type: str, /, **data: Any) -> wire.NewEvent:
    return wire.NewEvent(type=event_type, data=data, id=new_id())


def decision(after: int, *events: wire.NewEvent) -> wire.Decisions:
    return wire.Decisions(after=after, events=list(events))


@dataclass(frozen=True)
class Kind:
    """`ready` prepares the run and answers what sends the request.

    known: the answer is given by the events' ids, so it is the first for as long as the run lives.
    fenced: its writer can be fenced in between, which says nothing about what it wrote.
    compare: the fields that must be equal where not all need be.
    error: the refusal that first and repeat are.
    """

    name: str
    ready: Callable[[Stage], Send]
    known: bool = False
    fenced: bool = False
    compare: tuple[str, ...] = ()
    error: str | None = None

    def __str__(self) -> str:
        return self.name


# --- starting


def start_by_name(stage: Stage) -> Send:
    body = wire.StartRun(run=stage.run, agent=stage.agent, input={"n": 1}, labels={"a": "b"})
    return lambda client: client.start_run(body)


def start_without_a_name(stage: Stage) -> Send:
    body = wire.StartRun(agent=stage.agent, input={"n": 1}, id=new_id())

    def send(client: StoreClient) -> Any:
        found = client.start_run(body)
        stage.run = found["run"]
        return found

    return send


START = ("run", "log_id", "agent", "labels", "head_seq", "created_at")


# --- leases


def claim(stage: Stage) -> Send:
    stage.start()
    body = stage.claim_body()
    return lambda client: client.claim(body)


def claim_after_another(stage: Stage) -> Send:
    """The worker holds a run and says so; only the other one may come back."""
    stage.hold()
    held = wire.Held(run=stage.run, epoch=stage.epoch)
    other = Stage(stage.direct, f"{stage.run}-2", worker=stage.worker)
    other.start()
    body = other.claim_body()
    full = wire.ClaimRuns(
        **{name: getattr(body, name) for name in body.__struct_fields__} | {"holding": [held]}
    )

    def send(client: StoreClient) -> Any:
        grants = client.claim(full)
        assert [grant.run for grant in grants] == [other.run]
        return grants

    return send


def renew(stage: Stage) -> Send:
    stage.hold()
    leases = [wire.Held(run=stage.run, epoch=stage.epoch)]
    body = wire.RenewLeases(worker=stage.worker, leases=leases)
    return lambda client: client.renew(body)


def release(stage: Stage) -> Send:
    stage.hold()
    stage.open_effect()
    body = wire.ReleaseLease(worker=stage.worker, epoch=stage.epoch)
    return lambda client: client.release(stage.run, body)


# --- reading


def state(stage: Stage) -> Send:
    stage.hold()
    return lambda client: client.state(stage.run)


def a_run(stage: Stage) -> Send:
    stage.hold()
    return lambda client: client.run(stage.run)


def some_events(stage: Stage) -> Send:
    stage.hold()
    return lambda client: client.events(stage.run, from_seq=1)


def awaited_events(stage: Stage) -> Send:
    """A long poll that is answered at once, as nothing is awaited past what is there."""
    stage.hold()
    return lambda client: client.events(stage.run, from_seq=2, timeout_s=5.0)


def effects(stage: Stage) -> Send:
    stage.doubt()
    return lambda client: client.effects(stage.run, status="in_doubt")


# --- appends


def appending(stage: Stage, *facts: wire.NewEvent, decisions: wire.Decisions | None = None) -> Send:
    body = wire.AppendEvents(events=list(facts), epoch=stage.epoch, decisions=decisions)
    return lambda client: client.append(stage.run, body)


def succeeded(effect: str = "e1") -> wire.NewEvent:
    return event("effect_succeeded", effect=effect, result={"booking": "B-1", "price": 219})


def facts(stage: Stage) -> Send:
    stage.hold()
    stage.open_effect()
    return appending(stage, succeeded(), event("vars_changed", change={"merge": {"a": 1}}))


def decisions(stage: Stage) -> Send:
    stage.hold()
    return appending(stage, decisions=decision(stage.head(), stage.plan("e1"), stage.intent()))


def a_relative_deadline(stage: Stage) -> Send:
    stage.hold()
    asked = event("wait_opened", wait="w1", kind="question", prompt="who?", in_s=3600.0)
    return appending(stage, decisions=decision(stage.head(), asked))


def facts_and_decisions(stage: Stage) -> Send:
    stage.hold()
    stage.open_effect()
    plan = stage.plan("e2")
    decided = decision(stage.head(), plan, stage.intent("e2"))
    return appending(stage, succeeded(), decisions=decided)


def facts_and_stale_decisions(stage: Stage) -> Send:
    stage.hold()
    stage.open_effect()
    decided = decision(stage.head(), stage.plan("e2"), stage.intent("e2"))
    stage.direct.send_message(stage.run, wire.SendMessage(content="wait!"))
    return appending(stage, succeeded(), decisions=decided)


def facts_and_refused_decisions(stage: Stage) -> Send:
    stage.hold()
    stage.open_effect()
    decided = decision(stage.head(), stage.plan("e7"))
    return appending(stage, succeeded(), decisions=decided)


def stale_decisions(stage: Stage) -> Send:
    stage.hold()
    decided = decision(stage.head(), stage.plan("e1"))
    stage.direct.send_message(stage.run, wire.SendMessage(content="wait!"))
    return appending(stage, decisions=decided)


def first_append_of_a_grant(stage: Stage) -> Send:
    """What a takeover begins with: how it resumed, and the decision to call again."""
    stage.hold()
    stage.open_effect(on_doubt="retry")
    stage.release()
    stage.claim(f"the-next-{stage.run}")
    resumed = event("run_resumed", replayed_events=stage.head(), doubts=["e1"])
    again = stage.intent(on_doubt="retry", attempt=2)
    return appending(stage, resumed, decisions=decision(stage.head(), again))


def the_end(stage: Stage) -> Send:
    stage.hold()
    stage.open_effect()
    ended = event("run_succeeded", output={"booking": "B-1"})
    return appending(stage, succeeded(), decisions=decision(stage.head(), ended))


def late_outcome(stage: Stage) -> Send:
    """After the lease has ended by itself: the epoch is still the latest, so its fact lands."""
    stage.doubt()
    return appending(stage, succeeded())


def blob(stage: Stage) -> Send:
    stage.start()
    data = (stage.run * 50_000).encode()

    def send(client: StoreClient) -> Any:
        sha256 = client.put_blob(data)
        assert sha256 == hashlib.sha256(data).hexdigest()
        assert stage.direct.get_blob(sha256) == data
        return sha256

    return send


# --- people, and workers that write as people do


def settle(stage: Stage) -> Send:
    stage.doubt()
    said = wire.SettleEffect(outcome="happened", result={"ok": 1}, by=stage.worker, id=new_id())
    return lambda client: client.settle(stage.run, "e1", said)


def settle_as_not_done(stage: Stage) -> Send:
    stage.doubt()
    said = wire.SettleEffect(outcome="did_not_happen", evidence="asked", by="ana", id=new_id())
    return lambda client: client.settle(stage.run, "e1", said)


def message(stage: Stage) -> Send:
    stage.hold()
    said = wire.SendMessage(content="go on", by="ana", id=new_id())
    return lambda client: client.send_message(stage.run, said)


def signal(stage: Stage) -> Send:
    stage.hold()
    sent = wire.SendSignal(payload={"n": 1}, by="ana", id=new_id())
    return lambda client: client.send_signal(stage.run, "paid", sent)


def answer(stage: Stage) -> Send:
    stage.hold()
    stage.decide(event("wait_opened", wait="w1", kind="question", prompt="who?"))
    said = wire.AnswerWait(answer="Ana", by="ana", id=new_id())
    return lambda client: client.answer(stage.run, "w1", said)


def approve(stage: Stage) -> Send:
    stage.ask_approval()
    by = wire.By(by="ana", id=new_id())
    return lambda client: client.approve(stage.run, by)


def reject(stage: Stage) -> Send:
    stage.ask_approval()
    by = wire.By(by="ana", id=new_id())
    return lambda client: client.reject(stage.run, by)


def cancel(stage: Stage) -> Send:
    stage.hold()
    stage.open_effect()
    by = wire.By(by="ana", reason="no need", id=new_id())
    return lambda client: client.cancel(stage.run, by)


def cancel_that_ends(stage: Stage) -> Send:
    """Nobody holds the run: the store ends it in the same frame."""
    stage.start()
    by = wire.By(by="ana", id=new_id())
    return lambda client: client.cancel(stage.run, by)


def pause(stage: Stage) -> Send:
    stage.hold()
    by = wire.By(by="ana", reason="lunch", id=new_id())
    return lambda client: client.pause(stage.run, by)


def unpause(stage: Stage) -> Send:
    stage.hold()
    stage.direct.pause(stage.run)
    by = wire.Unpause(by="ana", id=new_id())
    return lambda client: client.unpause(stage.run, by)


APPENDED = ("run", "first_seq", "last_seq", "head_seq", "at")

KINDS = [
    Kind("start a run by its name", start_by_name, compare=START),
    Kind("start a run without a name", start_without_a_name, compare=START),
    Kind("claim", claim),
    Kind("claim while holding another", claim_after_another),
    Kind("renew leases", renew),
    Kind("release a lease", release),
    Kind("read the state", state),
    Kind("read a run", a_run, compare=(*START, "status", "epoch")),
    Kind("read events", some_events),
    Kind("wait for events", awaited_events),
    Kind("read the doubts", effects),
    Kind("append facts", facts, known=True, fenced=True),
    Kind("append decisions", decisions, known=True, fenced=True),
    Kind("append a relative deadline", a_relative_deadline, known=True),
    Kind("append facts and decisions", facts_and_decisions, known=True, fenced=True),
    Kind("append facts and stale decisions", facts_and_stale_decisions, known=True, fenced=True),
    Kind(  # why they were refused is told once: a repeat never judges decisions again
        "append facts and refused decisions",
        facts_and_refused_decisions,
        known=True,
        fenced=True,
        compare=APPENDED,
    ),
    Kind("append stale decisions alone", stale_decisions, error="seq_conflict"),
    Kind("first append of a grant", first_append_of_a_grant, known=True, fenced=True),
    Kind("append the end", the_end, known=True),
    Kind("append a late outcome", late_outcome, known=True),
    Kind("put a blob", blob),
    Kind("settle: it happened", settle, known=True),
    Kind("settle: it did not happen", settle_as_not_done, known=True),
    Kind("send a message", message, known=True, fenced=True),
    Kind("send a signal", signal, known=True, fenced=True),
    Kind("answer a question", answer, known=True),
    Kind("approve", approve, known=True),
    Kind("reject", reject, known=True),
    Kind("cancel", cancel, known=True),
    Kind("cancel a run that nobody holds", cancel_that_ends, known=True),
    Kind("pause", pause, known=True),
    Kind("unpause", unpause, known=True, fenced=True),
]
