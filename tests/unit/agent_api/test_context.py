"""What a tool is told, and what of it must not leak or get lost."""

from __future__ import annotations

import json
import logging
from urllib.parse import quote, quote_plus

import pytest

from stillrun import NotDone
from stillrun.agent import Context, SecretMissing, Vars
from stillrun.errors import UnsupportedValue
from stillrun.events import EffectSucceeded, Event, VarsChange
from stillrun.reducers import fold_into
from stillrun.state import new_state
from stillrun.values import merge_patch, same


def context(**more):
    return Context(run="trip-1", key="trip-1.x.1.y", effect="e1", **more)


def test_a_context_is_read_only():
    ctx = context()
    for name in ("key", "vars", "other"):
        with pytest.raises(AttributeError):
            setattr(ctx, name, 1)
    with pytest.raises(AttributeError):
        del ctx.key


def test_the_time_left_only_shrinks_and_ends_at_zero():
    ctx = context(timeout_s=50.0)
    first = ctx.time_left_s()
    assert 0 < ctx.time_left_s() <= first <= 50.0
    assert context(timeout_s=-1.0).time_left_s() == 0.0


def test_a_secret_is_read_and_never_shown(tmp_path, caplog):
    (tmp_path / "TOKEN").write_text("hunter2\n")
    ctx = context(secrets_dir=tmp_path)
    secret = ctx.secret("TOKEN")
    assert secret == "hunter2"
    assert f"Bearer {secret}" == "Bearer hunter2"
    shown = repr([secret, ctx, {"at": secret}])
    assert "hunter2" not in shown
    with caplog.at_level(logging.DEBUG):
        ctx.log.info("used %r", secret)
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("name", ["MISSING", "../TOKEN", "/etc/passwd", "", ".", "a/b", "folder"])
def test_a_secret_that_is_not_there_means_that_nothing_was_done(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path.parent / "TOKEN").write_text("no")
    with pytest.raises(SecretMissing) as missing:
        context(secrets_dir=tmp_path).secret(name)
    assert isinstance(missing.value, NotDone)
    with pytest.raises(NotDone):
        context().secret("TOKEN")


def test_each_line_of_the_log_names_its_run_and_effect(caplog):
    with caplog.at_level(logging.INFO):
        context().log.info("called %s", "the desk", extra={"more": 1})
    (record,) = caplog.records
    assert record.getMessage() == "trip-1 e1: called the desk"
    assert (record.run, record.effect, record.more) == ("trip-1", "e1", 1)


# --- vars

BEFORE = {"a": 1, "trip": {"route": "A", "price": 2}, "log": [1], "word": "x"}


def applied(change: VarsChange | None) -> dict:
    """What the fold makes of the change: the one meaning of `merge` and `append`."""
    state = new_state()
    state.content.vars = dict(BEFORE)
    event = Event(
        seq=1,
        id="0" * 32,
        type="effect_succeeded",
        schema_version=1,
        at_ms=0,
        epoch=0,
        data=EffectSucceeded(effect="e1", vars=change),
    )
    return fold_into(state, [event]).content.vars


def without(key: str) -> dict:
    return {name: value for name, value in BEFORE.items() if name != key}


@pytest.mark.parametrize(
    ("steps", "after"),
    [
        ([], BEFORE),
        ([("set", "a", 2)], BEFORE | {"a": 2}),
        ([("set", "a", 1.0)], BEFORE | {"a": 1.0}),
        ([("set", "a", None)], without("a")),
        ([("set", "trip", {"route": "B"})], BEFORE | {"trip": {"route": "B"}}),
        ([("set", "trip", {})], BEFORE | {"trip": {}}),
        ([("set", "trip", 5), ("set", "trip", {"x": 1})], BEFORE | {"trip": {"x": 1}}),
        ([("merge", {"trip": {"price": 3}})], BEFORE | {"trip": {"route": "A", "price": 3}}),
        ([("merge", {"trip": {"price": None}, "b": 1})], BEFORE | {"trip": {"route": "A"}, "b": 1}),
        ([("append", "log", 2), ("append", "log", 3)], BEFORE | {"log": [1, 2, 3]}),
        ([("append", "new", {"k": None})], BEFORE | {"new": [{"k": None}]}),
        ([("append", "word", 1)], BEFORE | {"word": [1]}),
        ([("append", "log", 2), ("set", "log", [])], BEFORE | {"log": []}),
        ([("set", "log", []), ("append", "log", 2)], BEFORE | {"log": [2]}),
        ([("append", "log", 2), ("merge", {"log": None})], without("log")),
    ],
)  # fmt: skip
def test_what_a_tool_did_to_vars_is_what_the_fold_makes_of_it(steps, after):
    vars = Vars(BEFORE)
    for step, *args in steps:
        getattr(vars, step)(*args)
    assert same(applied(vars.change()), after)
    assert {key: vars.get(key) for key in after} == after
    assert (vars.change() is None) == (steps == [])


def test_two_parallel_calls_that_change_different_keys_keep_both_changes():
    one, other = Vars(BEFORE), Vars(BEFORE)
    one.set("trip", {"route": "A", "price": 9})
    other.merge({"trip": {"route": "B"}})
    merged = merge_patch(merge_patch(BEFORE, one.change().merge), other.change().merge)
    assert merged["trip"] == {"route": "B", "price": 9}


@pytest.mark.parametrize(
    ("step", "args"),
    [
        ("set", ("a", float("nan"))),
        ("set", ("a", object())),
        ("set", ("a", {"b": {"c": None}})),  # a merge patch would lose it in silence
        ("merge", ([],)),
        ("merge", ({"a": object()},)),
        ("append", ("log", {1: 2})),
    ],
)
def test_a_value_that_vars_cannot_hold_is_refused_at_once(step, args):
    vars = Vars(BEFORE)
    with pytest.raises(UnsupportedValue):
        getattr(vars, step)(*args)
    assert vars.change() is None


def test_a_text_is_cleared_of_the_secrets_that_were_given_out(tmp_path):
    (tmp_path / "TOKEN").write_text("hunter2")
    (tmp_path / "LONGER").write_text("hunter2 & co")
    (tmp_path / "EMPTY").write_text("")
    (tmp_path / "OTHER").write_text("401")
    ctx = context(secrets_dir=tmp_path)
    for name in ("TOKEN", "LONGER", "EMPTY"):
        ctx.secret(name)
    text = "401 for ?token=hunter2%20%26%20co as hunter2 & co, hunter2"
    assert ctx.without_secrets(text) == (
        "401 for ?token=[secret LONGER] as [secret LONGER], [secret TOKEN]"
    )


@pytest.mark.parametrize("write", [str, repr, json.dumps, quote, quote_plus, "{}".format])
def test_a_key_of_several_lines_and_odd_signs_is_hidden_however_it_is_spelt(tmp_path, write):
    key = "begin \"key\"\nab\\cd/+= \u00fc\n'end'"
    (tmp_path / "PEM").write_text(key)
    ctx = Context(run="r", key="k", effect="e1", secrets_dir=tmp_path)
    secret = str(ctx.secret("PEM"))
    for text in (write(secret), write(f"it's {secret} there"), write(f'"{secret}"')):
        assert "ab" not in ctx.without_secrets(text) and "[secret PEM]" in ctx.without_secrets(text)


def test_what_is_read_of_vars_is_the_readers_own():
    """The fold shares its values: an append in place would be in the state and in no event."""
    values = {"list": [1], "map": {"a": [1]}}
    vars = Vars(values)
    vars.get("list").append(2)
    vars.get("map")["a"].append(2)
    vars.append("list", [3])
    vars.get("list")[1].append(4)
    assert values == {"list": [1], "map": {"a": [1]}}
    assert vars.change() == VarsChange(append={"list": [[3]]})
