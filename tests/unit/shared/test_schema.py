"""Old data is read forward, one small pure step per version; newer data is refused by name (I9)."""

from __future__ import annotations

import msgpack
import pytest

from stillrun import codec, schema
from stillrun import events as ev
from stillrun.errors import CorruptLog, Damaged, UnknownSchema


@pytest.fixture
def version_three(monkeypatch):
    """The code two releases on: v1 called the effect `call`, v2 called the result `answer`."""
    monkeypatch.setattr(schema, "_UPCASTERS", {})
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(codec, "SCHEMA_VERSION", 3)

    @schema.upcaster("effect_succeeded", from_version=1)
    def call_is_now_effect(data):
        return {"effect": data["call"], "answer": data["answer"]}

    @schema.upcaster("effect_succeeded", from_version=2)
    def answer_is_now_result(data):
        return {"effect": data["effect"], "result": data["answer"]}


def old(version: int, event_type: str, data: object) -> bytes:
    return msgpack.packb([bytes(16), event_type, version, 5, 0, data])


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (1, {"call": "e1", "answer": [1.0]}),
        (2, {"effect": "e1", "answer": [1.0]}),
        (3, {"effect": "e1", "result": [1.0]}),
    ],
)
def test_an_event_of_every_older_version_is_read_as_today_s(version_three, version, data):
    event = codec.decode_event(9, old(version, "effect_succeeded", data))
    assert event.data == ev.EffectSucceeded(effect="e1", result=[1.0])


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(
    ("event_type", "data"), [("tag_set", {"name": "a", "at_seq": 1}), ("a.b", {"call": 1})]
)
def test_a_type_without_steps_is_read_as_it_is(version_three, version, event_type, data):
    event = codec.decode_event(9, old(version, event_type, data))
    assert codec.event_to_wire(event)["data"] == data


def test_a_step_changes_nothing_that_it_was_given(version_three):
    data = {"call": "e1", "answer": 1}
    schema.upcast("effect_succeeded", 1, data)
    assert data == {"call": "e1", "answer": 1}


def test_old_data_that_lacks_what_a_step_left_is_damage(version_three):
    with pytest.raises(CorruptLog):
        codec.decode_event(9, old(1, "tag_set", {"name": "a"}))


@pytest.mark.parametrize("event_type", ["effect_succeeded", "born_in_four", "a.b"])
def test_a_newer_version_is_refused_by_name_and_called_damage_not_a_mistake(
    version_three, event_type
):
    with pytest.raises(UnknownSchema) as refused:
        codec.decode_event(9, old(4, event_type, {}))
    assert isinstance(refused.value, Damaged)
    assert refused.value.facts == {"schema_version": 4, "known": 3}
    with pytest.raises(UnknownSchema):
        schema.upcast(event_type, 4, {})


def test_upcasters_of_a_test_do_not_stay():
    assert ("effect_succeeded", 1) not in schema._UPCASTERS
