"""Settling a doubt over HTTP's use case: of one attempt only, with the author's vars."""

from __future__ import annotations

import pytest

from stillrun import wire
from stillrun.errors import CheckRefused, InvalidBody
from stillrun.events import Usage, VarsChange, make_key
from stillrun.values import args_digest
from stillrun_store import leases, people
from stillrun_store.append import append
from stillrun_store.ledger import effects_of
from stillrun_store.storage import Engine
from stillrun_store.store import Store

ARGS = {"seat": "1A"}


@pytest.fixture
def store(tmp_path):
    store = Store(Engine.open(tmp_path / "data"))
    yield store
    store.close()


@pytest.fixture
def doubt(store):
    """A write in doubt after its first attempt; the run is nobody's."""
    store.start("r", wire.StartRun(agent="a"))
    claim = wire.ClaimRuns(worker="w", claim="c", agents=["a"], schema_version=1)
    (grant,) = leases.claim(store, claim)
    digest = args_digest(ARGS)
    key = make_key("r", store.entry("r").log_id, 1, digest)
    plan = {"calls": [{"effect": "e1", "name": "book", "args": ARGS}]}
    intent = {"effect": "e1", "kind": "tool", "name": "book", "args": ARGS, "writes": True}
    intent |= {"args_digest": digest, "key": key, "on_doubt": "ask"}
    events = [
        wire.NewEvent(type="plan_made", data=plan),
        wire.NewEvent(type="effect_intended", data=intent),
    ]
    decisions = wire.Decisions(after=grant.head_seq, events=events)
    append(store, "r", wire.AppendEvents(epoch=grant.epoch, decisions=decisions))
    leases.release(store, "r", wire.ReleaseLease(worker="w", epoch=grant.epoch))


def test_a_settlement_of_another_attempt_is_refused(store, doubt):
    body = wire.SettleEffect(outcome="did_not_happen", attempt=2)
    with pytest.raises(CheckRefused) as refused:
        people.settle(store, "r", "e1", body)
    assert (refused.value.code, refused.value.facts["attempt"]) == ("wrong_attempt", 1)


def test_a_settlement_of_this_attempt_brings_result_and_vars(store, doubt):
    vars = VarsChange(merge={"booked": True})
    body = wire.SettleEffect(outcome="happened", result={"id": 1}, attempt=1, vars=vars)
    people.settle(store, "r", "e1", body)
    content = store.state_at(store.entry("r"), store.entry("r").head_seq).state.content
    assert content.vars == {"booked": True}
    assert content.messages[-1]["content"] == {"id": 1}


def test_a_settlement_counts_what_the_call_has_cost(store, doubt):
    usage = Usage(input_tokens=7, output_tokens=9, cost=0.5)
    people.settle(store, "r", "e1", wire.SettleEffect(outcome="happened", usage=usage))
    entry = store.entry("r")
    control = store.state_at(entry, entry.head_seq).state.control
    assert (control.tokens, control.cost) == (16, 0.5)
    (effect,) = effects_of(store, entry)
    assert effect["usage"]["input_tokens"] == 7


def test_what_did_not_happen_has_neither_result_nor_vars(store, doubt):
    for extra in ({"result": 1}, {"vars": VarsChange(merge={"a": 1})}, {"usage": Usage()}):
        with pytest.raises(InvalidBody):
            people.settle(store, "r", "e1", wire.SettleEffect(outcome="did_not_happen", **extra))
