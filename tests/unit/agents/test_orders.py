"""Order fulfilment by the kit: each of pay, ship and notify once, whatever is killed."""

from __future__ import annotations

import json
import shutil

import pytest

from stillrun import DidNotHappen
from stillrun.testing import Difference, approve, crash_everywhere, reject, run_agent

LAMP = {"customer": "ana", "article": "lamp", "count": 2, "address": "Main St 1"}
DESK = LAMP | {"article": "desk", "count": 1}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ORDERS_DIR", str(tmp_path / "shop"))
    return tmp_path / "shop"


@pytest.fixture
def agent(load, folder):
    return load("orders")["agent"]


def done(folder):
    """The ledger: what was done, without the keys under which it was."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(found, key=lambda each: each["id"])


def test_an_order_is_paid_shipped_and_notified_without_a_person(agent, folder):
    result = run_agent(agent, LAMP)
    assert result.output == {"paid": 80, "payment": "payment-e2", "parcel": "parcel-e3"}
    assert [each["id"] for each in done(folder)] == ["note-e4", "parcel-e3", "payment-e2"]
    assert [path.suffix for path in folder.iterdir()] == [".json"] * 3


@pytest.mark.parametrize(
    ("order", "people", "error"),
    [
        (DESK, [reject()], "pay: rejected"),
        (DESK, [], "pay: rejected"),  # the deadline of a day passes
        (LAMP | {"article": "moon"}, [], "price: failed"),
    ],
)
def test_what_is_not_paid_is_not_shipped(order, people, error, agent, folder):
    result = run_agent(agent, order, people=people)
    assert (result.status, result.error["message"]) == ("failed", error)
    assert done(folder) == []


def everywhere(agent, folder, **options):
    return crash_everywhere(
        agent,
        DESK,
        people=[approve("pay")],
        fresh=lambda: shutil.rmtree(folder, ignore_errors=True),
        outside=lambda: done(folder),
        **options,
    )


def test_a_crash_anywhere_changes_nothing(agent, folder):
    report = everywhere(agent, folder)
    assert report.crashes == len(report.places) >= 20
    assert [each["id"] for each in done(folder)] == ["note-e4", "parcel-e3", "payment-e2"]


def test_a_shop_that_forgets_keys_is_found_out(load, folder):
    file = load("orders")
    agent, count = file["agent"], iter(range(1_000_000))

    def forgetful(ctx, kind, **what):
        done = {"id": f"{kind}-{ctx.effect}", **what}
        folder.mkdir(exist_ok=True)
        (folder / f"{next(count)}.json").write_text(json.dumps(done))
        return done

    agent.tools["notify"].fn.__globals__["once"] = forgetful
    agent.tools["notify"].fn.__globals__["what_was_done"] = lambda ctx, kind: DidNotHappen()
    with pytest.raises(Difference) as found:
        everywhere(agent, folder)
    assert found.value.place == "after the call of tool pay (e2, attempt 1)"
