"""The demo's proof takes no run for a rescue in which nothing died."""

from __future__ import annotations

import copy

import pytest

from demo.proof import claims

KEY = "trip-1.0011223344556677.12.aabbccdd"


def event(seq, type, epoch=0, **data):
    return {"seq": seq, "type": type, "epoch": epoch, "data": data}


def story():
    """What the log and the ledger say when the agent really died and another asked the desk."""
    events = [
        event(2, "lease_granted", worker="a"),
        event(3, "effect_intended", 2, name="book", effect="e12", key=KEY),
        event(4, "effect_doubted", effect="e12", why="crash"),
        event(5, "lease_granted", worker="b"),
        event(6, "effect_settled", 5, effect="e12", outcome="happened", by="agent"),
        event(7, "run_succeeded", 5),
    ]
    requests = [{"key": KEY, "outcome": "applied"}, {"key": KEY, "outcome": "lookup_found"}]
    ledger = {"counts": {"bookings": 1, "mails": 1, "repeats": 0}, "requests": requests}
    return events, ledger


def failed(events, ledger, naive=2):
    return [sentence for holds, sentence in claims(events, ledger, naive) if not holds]


def test_a_real_rescue_is_taken():
    assert failed(*story()) == []
    assert failed(*story(), naive=None) == []


def change(part, where, **fields):
    def change(events, ledger):
        (events if part == "events" else ledger[part])[where].update(fields)

    return change


def data(where, **fields):
    return lambda events, ledger: events[where]["data"].update(fields)


@pytest.mark.parametrize(
    "changed",
    [
        data(2, why="error"),
        data(2, effect="e1"),
        data(3, worker="a"),
        data(4, by="a person"),
        data(4, outcome="did_not_happen"),
        change("events", 5, type="run_failed"),
        change("events", 4, epoch=2),
        lambda events, ledger: ledger["counts"].update(bookings=2),
        lambda events, ledger: ledger["counts"].update(mails=0),
        lambda events, ledger: ledger["counts"].update(repeats=1),
        lambda events, ledger: ledger["requests"].pop(),
        lambda events, ledger: ledger["requests"].append({"key": KEY, "outcome": "applied"}),
        lambda events, ledger: events.__delitem__(2),
        lambda events, ledger: events.__delitem__(4),
    ],
    ids=range(14),
)
def test_a_log_in_which_something_is_missing_is_refused(changed):
    events, ledger = copy.deepcopy(story())
    changed(events, ledger)
    assert failed(events, ledger) != []


def test_a_control_that_books_once_proves_nothing():
    assert failed(*story(), naive=1) != []
