"""Scripted people: who answers which wait with what, and who settles a doubt.

Always: an act is done once, by the first wait that it fits, in the order of the script; a doubt
that the script does not speak of is settled truthfully, from the calls that were really made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stillrun import wire
from stillrun.client import StoreClient

from .performing import Made

__all__ = ["Act", "People", "answer", "approve", "reject", "say", "settle", "signal"]

Kind = Literal["approval", "question", "message", "signal", "settle"]
BY = "ana"


@dataclass(frozen=True, kw_only=True)
class Act:
    """What a person does. `on`: the id of a wait or effect, or the tool's or the wait's name."""

    kind: Kind
    on: str | None = None
    answer: Any = None
    args: dict[str, Any] | None = None
    comment: str | None = None
    outcome: Literal["happened", "did_not_happen"] | None = None
    by: str = BY

    def fits(self, kind: str, names: Sequence[str | None]) -> bool:
        """Whether this act is for a wait of that kind with one of these names."""
        return self.kind == kind and (self.on is None or self.on in names)


def approve(on: str | None = None, *, args: dict[str, Any] | None = None, by: str = BY) -> Act:
    """Say yes to an approval; with `args`, edit them first."""
    word = "approve" if args is None else "edit"
    return Act(kind="approval", on=on, answer=word, args=args, by=by)


def reject(on: str | None = None, *, comment: str | None = None, by: str = BY) -> Act:
    """Say no to an approval."""
    return Act(kind="approval", on=on, answer="reject", comment=comment, by=by)


def answer(value: Any, on: str | None = None, *, by: str = BY) -> Act:
    """Answer a question."""
    return Act(kind="question", on=on, answer=value, by=by)


def say(content: Any, *, by: str = BY) -> Act:
    """Send a message to a run that waits for one."""
    return Act(kind="message", answer=content, by=by)


def signal(name: str, payload: Any = None, *, by: str = BY) -> Act:
    """Send a signal to a run that waits for it."""
    return Act(kind="signal", on=name, answer=payload, by=by)


def settle(
    outcome: Literal["happened", "did_not_happen"],
    on: str | None = None,
    *,
    result: Any = None,
    by: str = BY,
) -> Act:
    """Settle a doubt by hand, rightly or wrongly."""
    return Act(kind="settle", on=on, outcome=outcome, answer=result, by=by)


@dataclass
class People:
    """The script at work on one run."""

    script: Sequence[Act]
    _done: set[int] = field(default_factory=set)

    def act(self, client: StoreClient, run: str, made: Sequence[Made]) -> bool:
        """Do what can be done now; True if something was."""
        acted = False
        for wait in client.waits(run):
            acted = self._on_wait(client, run, wait) or acted
        for effect in client.effects(run, status="in_doubt"):
            if client.run(run)["status"] == "in_doubt":
                acted = self._on_doubt(client, run, effect, made) or acted
        return acted

    def _take(self, kind: str, names: Sequence[str | None]) -> Act | None:
        for at, act in enumerate(self.script):
            if at not in self._done and act.fits(kind, names):
                self._done.add(at)
                return act
        return None

    def _on_wait(self, client: StoreClient, run: str, wait: dict[str, Any]) -> bool:
        if wait["status"] != "open":
            return False
        names = [wait["wait"], wait["subject"], wait["name"]]
        if wait["kind"] == "approval":
            subject = client.effects(run)
            names += [each["name"] for each in subject if each["effect"] == wait["subject"]]
        act = self._take(wait["kind"], names)
        if act is None:
            return False
        if act.kind == "message":
            client.send_message(run, wire.SendMessage(content=act.answer, by=act.by))
        elif act.kind == "signal":
            client.send_signal(run, str(act.on), wire.SendSignal(payload=act.answer, by=act.by))
        else:
            said = wire.AnswerWait(answer=act.answer, args=act.args, by=act.by, comment=act.comment)
            client.answer(run, wait["wait"], said)
        return True

    def _on_doubt(
        self, client: StoreClient, run: str, effect: dict[str, Any], made: Sequence[Made]
    ) -> bool:
        act = self._take("settle", [effect["effect"], effect["name"]])
        if act is not None and act.outcome is not None:
            settled = wire.SettleEffect(outcome=act.outcome, result=act.answer, by=act.by)
        else:
            settled = truth(effect["effect"], made)
        client.settle(run, effect["effect"], settled)
        return True


def truth(effect: str, made: Sequence[Made]) -> wire.SettleEffect:
    """What really became of an effect's calls, as someone who looked at the callee would say."""
    evidence = {"looked_at": "the calls that were made"}
    for call in made:
        if call.effect == effect and call.took_effect:
            return wire.SettleEffect(
                outcome="happened", result=call.result, vars=call.vars, evidence=evidence, by=BY
            )
    return wire.SettleEffect(outcome="did_not_happen", evidence=evidence, by=BY)
