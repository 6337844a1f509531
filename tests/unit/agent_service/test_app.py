"""The agent service over HTTP, with a store that is a few lines of memory."""

from __future__ import annotations

import json
import threading

import msgspec
import pytest

from stillrun import Agent, tool
from stillrun.client import EventPage, Interrupted, StoreUnreachable
from stillrun.codec import MSGPACK, encode_msgpack
from stillrun.errors import RunExists, RunNotFound
from stillrun.schema import SCHEMA_VERSION
from stillrun_agent.app import create_app
from stillrun_agent.config import Config
from stillrun_agent.registry import BrokenFile, Registry
from stillrun_agent.routes import MAX_WAITING


class Trip(msgspec.Struct, forbid_unknown_fields=True):
    route: str
    budget: int = 400


@tool(effect="write")
def book(ctx, route: str):
    """Book a seat."""


TRIP = {"input": {"route": "LIS-OSL"}}


class FakeStore:
    """What the routes use of StoreClient. A run ends when somebody polls its events."""

    url = "http://store:8100"

    def __init__(self):
        self.started = []
        self.runs = {}
        self.failure = None
        self.ready = True
        self.schema_version = SCHEMA_VERSION
        self.polls = 0
        self.ends_on_poll = True

    def start_run(self, start):
        if self.failure:
            raise self.failure
        self.started.append(start)
        run = start.run or "made-1"
        self.runs[run] = {
            "run": run,
            "status": "queued",
            "seq": 1,
            "head_seq": 1,
            "waiting_for": ["a worker"],
        }
        return self.runs[run]

    def run(self, run):
        if self.failure:
            raise self.failure
        if run not in self.runs:
            raise RunNotFound(run)
        return self.runs[run]

    def events(self, run, *, from_seq, limit, timeout_s, stop):
        self.polls += 1
        if stop.is_set():
            raise Interrupted("stopped")
        if self.ends_on_poll:
            self.runs[run] |= {"status": "succeeded", "output": {"ok": True}}
            self.runs[run] |= {"seq": 9, "head_seq": 9}
        return EventPage(run=run, events=[], head_seq=self.runs[run]["head_seq"])

    def about(self, *, retry_for_s=None):
        if self.failure:
            raise self.failure
        return {"store_id": "s1", "schema_version": self.schema_version}

    def is_ready(self):
        return self.ready


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def registry():
    registry = Registry()
    registry.add(Agent("trips", version=3, tools=[book], input_schema=Trip), "trips.py")
    registry.add(Agent("free"), "free.py")
    registry.broken.append(BrokenFile(file="mine.py", line=7, error="SyntaxError: no"))
    return registry


@pytest.fixture
def stop():
    return threading.Event()


@pytest.fixture
def web(store, registry, stop):
    config = Config(allowed_hosts=frozenset({"agent"}))
    return create_app(config, registry=registry, store=store, stop=stop).test_client()


def told(response, code):
    """The problem of a response, which must have this code and a body that explains itself."""
    assert response.mimetype == "application/problem+json"
    problem = json.loads(response.data)
    assert (problem["code"], problem["status"]) == (code, response.status_code)
    assert problem["title"] and problem["detail"]
    return problem


def test_an_agent_is_shown_with_its_tools_and_schemas(web):
    shown = web.get("/agents/trips").json
    assert (shown["agent"], shown["version"], shown["file"]) == ("trips", 3, "trips.py")
    assert shown["input_schema"]["required"] == ["route"]
    (tool_shown,) = shown["tools"]
    assert tool_shown["schema"]["properties"] == {"route": {"type": "string"}}
    assert (tool_shown["effect"], tool_shown["on_doubt"]) == ("write", "ask")
    assert (tool_shown["simulates"], shown["compacts"]) == (False, False)


def test_an_agents_hooks_are_shown(web, registry):
    pay = tool(effect="write", name="pay")(lambda ctx: None)
    pay.simulate(lambda ctx: "as if")
    agent = Agent("long", tools=[pay])
    agent.compact(above_bytes=9_000)(lambda messages: messages[-1:])
    registry.add(agent)
    shown = web.get("/agents/long").json
    assert (shown["compacts"], shown["compact_above_bytes"]) == (True, 9_000)
    assert shown["tools"][0]["simulates"] is True


def test_the_list_names_the_files_that_failed(web):
    listed = web.get("/agents").json
    assert [agent["agent"] for agent in listed["agents"]] == ["free", "trips"]
    assert listed["broken_files"] == [{"file": "mine.py", "line": 7, "error": "SyntaxError: no"}]


def test_an_unknown_agent_is_told_with_the_file_that_may_have_meant_it(web):
    problem = told(web.get("/agents/mine"), "agent_not_found")
    assert "mine.py, line 7: SyntaxError" in problem["detail"]
    assert problem["agents"] == ["free", "trips"]


def test_a_run_is_started_as_curl_sends_it(web, store):
    response = web.post(
        "/agents/trips/runs",
        data='{"run": "trip-1", "input": {"route": "LIS-OSL"}, "seed": 7}',
        content_type="application/x-www-form-urlencoded",
    )
    assert response.status_code == 202
    assert response.headers["Location"] == "/runs/trip-1/result"
    assert response.data.startswith(b'{\n  "run": "trip-1"') and response.data.endswith(b"}\n")
    (start,) = store.started
    assert (start.agent, start.agent_version, start.seed) == ("trips", 3, 7)
    assert start.input == {"route": "LIS-OSL"}  # as it was sent: defaults belong to the code


def test_a_run_that_an_earlier_version_started_is_confirmed(web, store, monkeypatch):
    first = store.start_run

    def start_run(start):
        if start.agent_version is not None:
            raise RunExists("started otherwise", differs=["agent_version"])
        return first(start)

    monkeypatch.setattr(store, "start_run", start_run)
    assert web.post("/agents/trips/runs", json=TRIP | {"run": "old"}).status_code == 202
    (start,) = store.started
    assert start.agent_version is None


def test_a_run_that_was_started_with_another_input_is_refused(web, store):
    store.failure = RunExists("started otherwise", differs=["agent_version", "input"])
    told(web.post("/agents/trips/runs", json=TRIP | {"run": "old"}), "run_exists")


def test_a_run_is_started_by_msgpack_and_with_nothing_at_all(web, store):
    body = encode_msgpack({"input": {"route": "A"}, "labels": {"team": "x"}})
    assert web.post("/agents/trips/runs", data=body, content_type=MSGPACK).status_code == 202
    assert web.post("/agents/free/runs").status_code == 202
    assert [start.labels for start in store.started] == [{"team": "x"}, None]


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ('{"input": {"budget": 1}}', "invalid_body", "/input"),
        ('{"input": {"route": 1}}', "invalid_body", "/input/route"),
        ('{"input": {"route": "A", "budgte": 1}}', "invalid_body", "/input"),
        ('{"input": {"route": "A"}, "inptu": 1}', "invalid_body", ""),
        ('{"input": {"route": "A"}, "seed": "7"}', "invalid_body", "/seed"),
        ('{"input": {"route": "A"}, "agent": "other"}', "invalid_body", ""),
        ('{"input": {"route": "A"}, "seed": NaN}', "unsupported_value", "/seed"),
        ('{"input": {"route": "A"}, "run": "no spaces"}', "invalid_parameter", None),
        ("[1]", "invalid_body", ""),
        ("{", "malformed_body", None),
        ("\xff", "invalid_body", None),
        ("[" * 500 + "]" * 500, "unsupported_value", None),
    ],
)
def test_a_bad_start_is_refused_naming_the_place_and_reaches_no_store(
    body, code, pointer, web, store
):
    response = web.post("/agents/trips/runs", data=body.encode("latin-1"))
    problem = told(response, "malformed_body" if body == "\xff" else code)
    if pointer is not None:
        assert problem["pointer"] == pointer
    assert store.started == []


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Content-Type": "multipart/form-data; boundary=x"}, "unsupported_media_type"),
        ({"Content-Encoding": "gzip"}, "unsupported_media_type"),
        ({"Accept": "text/html"}, "not_acceptable"),
        ({"Origin": "https://evil.example"}, "cross_origin"),
        ({"Origin": "null"}, "cross_origin"),
        ({"Host": "evil.example"}, "cross_origin"),
        ({"Host": "evil.example:8101"}, "cross_origin"),
        ({"Host": "127.0.0.1.evil.example"}, "cross_origin"),
        ({"Host": "[::1"}, "cross_origin"),
        ({"Host": "10.0.0.7:8101"}, "cross_origin"),
    ],
)
def test_what_a_foreign_page_or_a_form_could_send_is_refused(headers, code, web, store):
    response = web.post("/agents/free/runs", data="{}", headers=headers)
    problem = told(response, code)
    if code == "cross_origin":
        assert response.status_code == 403
        assert "ALLOWED_HOSTS" in problem["detail"]
    assert store.started == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost:9"},
        {"Host": "127.0.0.1:9", "Origin": "http://localhost:3000"},
        {"Host": "[::1]:8101"},
        {"Host": "AGENT:8101", "Origin": "http://agent"},
        {"Accept": "*/*"},
        {"Accept": "application/json;q=0.1, text/html"},
    ],
)
def test_our_own_names_are_served_whatever_the_port(headers, web):
    assert web.post("/agents/free/runs", data="{}", headers=headers).status_code == 202


@pytest.mark.parametrize("host", ["evil.example", "127.8.8.8", "x.localhost"])
def test_a_name_that_was_rebound_to_us_reads_nothing(host, web):
    told(web.get("/agents", headers={"Host": host}), "cross_origin")


def test_a_foreign_page_may_ask_what_its_browser_will_not_show_it(web):
    assert web.get("/agents", headers={"Origin": "https://evil.example"}).status_code == 200


def test_starting_may_wait_for_the_result(web):
    response = web.post("/agents/free/runs?timeout_s=5", data='{"run": "r"}')
    assert response.status_code == 200
    assert response.json == {
        "run": "r",
        "status": "succeeded",
        "output": {"ok": True},
        "waiting_for": ["a worker"],
        "head_seq": 9,
    }


def test_a_result_that_is_not_there_yet_is_202_and_says_why(web, store):
    web.post("/agents/free/runs", data='{"run": "r"}')
    response = web.get("/runs/r/result")
    assert (response.status_code, response.json["waiting_for"]) == (202, ["a worker"])
    assert store.polls == 0
    store.ends_on_poll = False
    assert web.get("/runs/r/result?timeout_s=30").status_code == 202
    assert store.polls == 1  # a store that answers at once is not asked in a loop
    assert told(web.get("/runs/unknown/result"), "run_not_found")["run"] == "unknown"


def test_an_end_that_came_while_the_run_was_read_is_not_waited_for(web, store):
    """The store shows the state of one seq and a head that has moved on meanwhile."""
    web.post("/agents/free/runs", data='{"run": "r"}')
    store.runs["r"] |= {"status": "running", "seq": 20, "head_seq": 21}
    asked = []

    def events(run, *, from_seq, **_):
        asked.append(from_seq)
        store.runs[run] = store.runs[run] | {"status": "succeeded", "seq": 21}
        return EventPage(run=run, events=[], head_seq=21)

    store.events = events
    assert web.get("/runs/r/result?timeout_s=30").json["status"] == "succeeded"
    assert asked == [21]


@pytest.mark.parametrize("value", ["-1", "61", "nan", "soon", "", "1&timeout_s=2"])
def test_a_bad_timeout_is_refused(value, web, store):
    response = web.post(f"/agents/free/runs?timeout_s={value}", data="{}")
    assert told(response, "invalid_parameter")["parameter"] == "timeout_s"
    assert store.started == []


@pytest.mark.parametrize("path", ["/agents?a=1", "/agents/trips?timeout_s=1", "/?x", "/readyz?x=1"])
def test_an_unknown_parameter_is_refused(path, web):
    told(web.get(path), "invalid_parameter")


def test_waiting_ends_when_the_service_stops(web, stop):
    web.post("/agents/free/runs", data='{"run": "r"}')
    stop.set()
    response = web.get("/runs/r/result?timeout_s=30")
    assert told(response, "stopping")["retryable"] is True
    assert response.headers["Retry-After"] == "1"


def test_waiting_requests_leave_threads_for_the_others(store, registry, stop):
    app = create_app(Config(), registry=registry, store=store, stop=stop)
    web = app.test_client()
    web.post("/agents/free/runs", data='{"run": "r"}')
    all_wait, go_on = threading.Barrier(MAX_WAITING + 1), threading.Event()

    def stands(run, **_):
        all_wait.wait(10)
        go_on.wait(10)
        return EventPage(run=run, events=[], head_seq=1)

    store.events = stands
    threads = [
        threading.Thread(target=lambda: app.test_client().get("/runs/r/result?timeout_s=30"))
        for _ in range(MAX_WAITING)
    ]
    for thread in threads:
        thread.start()
    all_wait.wait(10)
    told(web.get("/runs/r/result?timeout_s=30"), "overloaded")
    assert web.get("/runs/r/result").status_code == 202
    go_on.set()
    for thread in threads:
        thread.join(10)
    store.events = lambda run, **_: EventPage(run=run, events=[], head_seq=1)
    assert web.get("/runs/r/result?timeout_s=1").status_code == 202  # the places are free again


def test_what_the_store_says_is_passed_on(web, store):
    store.failure = StoreUnreachable("the store does not answer")
    assert told(web.post("/agents/free/runs", data="{}"), "store_unreachable")["retryable"] is True


def test_ready_is_when_the_store_answers_and_broken_files_are_a_detail(web, store):
    response = web.get("/readyz")
    assert (response.status_code, response.json["store_id"]) == (200, "s1")
    assert response.json["broken_files"][0]["file"] == "mine.py"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"failure": StoreUnreachable("no answer")}, "store_unreachable"),
        ({"ready": False}, "recovering"),
        ({"schema_version": SCHEMA_VERSION + 1}, "schema_behind"),
    ],
)
def test_it_is_not_ready_without_a_store_that_it_understands(change, code, web, store):
    for name, value in change.items():
        setattr(store, name, value)
    response = web.get("/readyz")
    told(response, code)
    assert response.status_code >= 400
    assert web.get("/healthz").status_code == 200


def test_it_is_not_ready_while_it_stops_or_its_worker_does_not_work(store, registry, stop, web):
    idle = create_app(Config(), registry=registry, store=store, is_ready=lambda: False)
    told(idle.test_client().get("/readyz"), "recovering")
    stop.set()
    told(web.get("/readyz"), "stopping")


def test_unknown_paths_and_methods_are_told_as_problems(web):
    told(web.get("/nothing"), "not_found")
    told(web.get("/agents/"), "not_found")
    response = web.delete("/agents/trips")
    told(response, "method_not_allowed")
    assert "GET" in response.headers["Allow"]


def test_a_body_over_the_limit_is_refused(web):
    told(web.post("/agents/free/runs", data=b" " * ((8 << 20) + 1)), "too_large")


def test_a_defect_is_told_without_its_insides(web, store, caplog):
    store.failure = RuntimeError("a secret")
    problem = told(web.get("/runs/r/result"), "internal")
    assert "secret" not in json.dumps(problem)
    assert problem["request_id"] in caplog.text


def test_every_code_that_is_told_is_explained(web):
    problem = told(web.get("/agents/mine"), "agent_not_found")
    assert web.get(problem["type"]).json["code"] == "agent_not_found"
    told(web.get("/problems/no_such_code"), "not_found")


def test_the_front_page_lists_what_is_here(web):
    shown = web.get("/").json
    assert shown["agents"] == ["free", "trips"]
    assert "POST /agents/<name>/runs" in shown["routes"]
