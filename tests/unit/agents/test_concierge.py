"""The concierge by the kit, in the world of the demo; each play has a world of its own."""

from __future__ import annotations

from collections import Counter

import pytest
import requests

from stillrun import DidNotHappen
from stillrun.testing import Difference, approve, crash_everywhere, reject, run_agent
from world.app import create_app

TRIP = {"route": "LIS-OSL", "budget": 420}


class InProcess:
    """Stands for the module `requests` in the agent's file: it asks a world in this process."""

    RequestException = requests.RequestException

    def __init__(self):
        self.fresh()

    def fresh(self):
        self._client = create_app().test_client()

    def get(self, url, *, params=None, timeout=None):
        return _Answer(self._client.get(_path(url), query_string=params))

    def post(self, url, *, json, headers, timeout):
        return _Answer(self._client.post(_path(url), json=json, headers=headers))

    def applied(self):
        """What the world did, without the keys under which it did it."""
        found = self.get("http://world/ledger").json()["applied"]
        return sorted((each["kind"], str(sorted(each["body"].items()))) for each in found)


class _Answer:
    def __init__(self, response):
        self.status_code, self.text = response.status_code, response.get_data(as_text=True)
        self.json = response.get_json

    def raise_for_status(self):
        if self.status_code >= 400:
            raise requests.HTTPError(self.text)


def _path(url):
    return "/" + url.split("/", 3)[3]


@pytest.fixture
def world():
    return InProcess()


@pytest.fixture
def agent(load, world, monkeypatch):
    monkeypatch.delenv("DEMO_FAULTS", raising=False)
    agent = load("concierge")["agent"]
    agent.tools["book"].fn.__globals__["requests"] = world
    return agent


def everywhere(agent, world, **options):
    return crash_everywhere(
        agent,
        TRIP,
        people=[approve("book")],
        fresh=world.fresh,
        outside=world.applied,
        **options,
    )


def test_a_trip_is_booked_once_a_person_approves(agent, world):
    result = run_agent(agent, TRIP, people=[approve("book")])
    assert (result.output["booking"], result.output["mail"]) == ("B-1", "M-1")
    assert Counter(kind for kind, _ in world.applied()) == {"hold": 1, "booking": 1, "mail": 1}


@pytest.mark.parametrize("people", [[reject()], []])
def test_what_nobody_approves_is_not_booked(people, agent, world):
    result = run_agent(agent, TRIP, people=people)
    assert result.output["booking"] is None
    assert Counter(kind for kind, _ in world.applied()) == {"hold": 1}


def test_a_crash_anywhere_changes_nothing(agent, world):
    report = everywhere(agent, world)
    assert report.crashes == len(report.places) >= 50


def test_a_desk_that_answers_wrongly_about_a_key_is_found_out(agent, world):
    agent.tools["book"].fn.__globals__["look_up"] = lambda ctx, path: DidNotHappen()
    with pytest.raises(Difference, match="although it had taken effect") as found:
        everywhere(agent, world)
    assert "after the call of tool book" in found.value.place


def test_a_hold_without_its_key_is_found_out(agent, world):
    post = world.post
    world.post = lambda url, **sent: post(
        url, **sent | ({"headers": {}} if url.endswith("/holds") else {})
    )
    with pytest.raises(Difference) as found:
        everywhere(agent, world)
    assert "after the call of tool hold" in found.value.place
