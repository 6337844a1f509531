"""Whose code is new enough for a run: claims carry versions, and runs say what they need."""

from __future__ import annotations

import threading

import pytest

from contract.door import Worker, event, good, nobody_is_changed, refused


def offers(version, name="a"):
    return [{"name": name, "version": version}]


def names(grants):
    return [grant["run"] for grant in grants]


def waiting_for(door, run="r"):
    return good(door.get(f"/runs/{run}")).body["waiting_for"]


def migrated(door, run="r", to=3):
    """A run that newer code has migrated and given back."""
    door.start(run)
    worker = door.worker(run, agents=offers(to))
    steps = event("vars_migrated", from_version=1, to_version=to, patch={"x": 1})
    good(worker.append(decisions=(door.head(run), [steps])), 201)
    good(worker.release())


@pytest.mark.parametrize(
    ("agents", "granted"),
    [
        (offers(2), []),
        (offers(3), ["r"]),
        (offers(4), ["r"]),
        (["a"], ["r"]),
        ([*offers(2), "a"], ["r"]),
        ([*offers(2), *offers(3)], ["r"]),
        (offers(9, "b"), []),
        ([], []),
    ],
)
@pytest.mark.parametrize("how", ["started", "migrated", "restarted"])
def test_a_run_is_granted_only_to_code_that_is_new_enough(door, how, agents, granted):
    if how == "started":
        door.start(agent_version=3)
    else:
        migrated(door)
    if how == "restarted":
        door.reopened()
    if granted:
        assert names(door.grants(agents=agents, limit=5)) == granted
    else:
        with nobody_is_changed(door):
            assert door.grants(agents=agents, limit=5) == []


def test_a_run_that_names_no_version_is_for_any(door):
    door.start()
    assert names(door.grants(agents=offers(1))) == ["r"]


def test_runs_of_all_versions_are_granted_oldest_first(door):
    for run, version in [("d", 3), ("a", 1), ("c", 2), ("b", 1), ("e", 9)]:
        door.start(run, agent_version=version)
    assert names(door.grants(agents=offers(2), limit=2)) == ["a", "c"]
    assert names(door.grants("v", agents=offers(3), limit=9)) == ["d", "b"]
    assert names(door.grants("u", agents=["a"], limit=9)) == ["e"]


def test_a_poll_of_older_code_is_not_woken_by_a_run_that_needs_newer(door):
    found = []
    poll = threading.Thread(
        target=lambda: found.append(door.grants(agents=offers(1), timeout_s=30.0))
    )
    poll.start()
    door.start("new", agent_version=2)
    door.start("old", agent_version=1)
    poll.join(20)
    assert [names(grants) for grants in found] == [["old"]]
    assert names(door.grants("v", agents=offers(2))) == ["new"]


def test_a_run_says_which_version_it_needs_and_who_offers_less(door):
    migrated(door)
    door.pass_time(31.0)
    assert waiting_for(door) == ["a worker"]
    door.grants("agent-1", agents=offers(1))
    door.grants("agent-2", agents=offers(2))
    door.grants("agent-2", agents=offers(2))
    door.grants("other", agents=offers(9, "b"))
    assert waiting_for(door) == [
        "a worker",
        "needs a version >= 3; agent-2 offers 2, agent-1 offers 1",
    ]
    door.pass_time(31.0)
    assert waiting_for(door) == ["a worker"], "who has claimed long ago may be gone"


@pytest.mark.parametrize("agents", [offers(3), ["a"]])
def test_where_somebody_could_take_it_versions_are_not_the_reason(door, agents):
    door.start("s", agent_version=3)
    assert names(door.grants("busy", agents=agents)) == ["s"]
    door.start("r", agent_version=3)
    door.grants("agent-2", agents=offers(2))
    assert waiting_for(door) == ["a worker"]


def test_a_run_that_its_holder_migrates_stays_with_it(door):
    door.start()
    [grant] = door.grants(agents=offers(3))
    worker = Worker(door, "r", "w", grant["epoch"])
    steps = event("vars_migrated", from_version=1, to_version=3, patch={})
    good(worker.append(decisions=(door.head(), [steps])), 201)
    holding = [{"run": "r", "epoch": grant["epoch"]}]
    assert door.grants(agents=offers(3), holding=holding) == []
    assert names(door.grants(agents=offers(3))) == ["r"], "a lost answer is repeated"


@pytest.mark.parametrize(
    "agents", [[{"name": "a"}], [{"name": "a", "version": "3"}], [{"version": 3}], [3], "a"]
)
def test_an_offer_of_another_shape_is_refused(door, agents):
    door.start()
    with nobody_is_changed(door):
        answer = refused(door.claim(agents=agents), 422, "invalid_body")
    assert answer.body["pointer"].startswith("/agents")
