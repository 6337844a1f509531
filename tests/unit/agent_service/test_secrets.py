"""A planted canary appears nowhere: not in events, logs, errors or snapshots."""

from __future__ import annotations

import json
import logging
from functools import partial
from urllib.parse import quote, quote_plus

import pytest
import requests

from services import AgentProcess, StoreProcess, eventually
from stillrun import Agent, Call, Fail, NotDone, Reply, Succeed, tool
from stillrun.agent import DidNotHappen, Happened
from stillrun.testing import ScriptedModel, run_agent, settle
from stillrun_agent.secrets import MIN_CHARS, RedactSecrets, Secrets

CANARY = "canary-7f3a9e51"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "TOKEN").write_text(CANARY + "\n")
    return folder


# --- what is found


@pytest.mark.parametrize(
    "value",
    [
        CANARY,
        f"Bearer {CANARY}!",
        [1, {"a": [f"x{CANARY}"]}],
        {f"key {CANARY}": 1},
        CANARY.encode(),
        {"headers": {"Authorization": CANARY}},
    ],
)
def test_a_secret_is_found_by_name_at_any_depth(value, folder):
    assert Secrets(folder).named_in(value) == "TOKEN"


@pytest.mark.parametrize("value", [None, 1, "", CANARY[:-1], ["TOKEN"], CANARY.upper(), {}])
def test_what_is_no_secret_is_not_found(value, folder):
    assert Secrets(folder).named_in(value) is None


def test_short_secrets_unreadable_and_large_files_are_not_looked_for(folder):
    (folder / "PIN").write_text("x" * (MIN_CHARS - 1))
    (folder / "KEYSTORE").write_bytes(b"\xff" * 50)
    (folder / "DUMP").write_text("y" * 100_000)
    (folder / "sub").mkdir()
    assert Secrets(folder).named_in(["x" * 50, "\ufffd" * 50, "y" * 100_000]) is None
    assert Secrets(folder / "nowhere").named_in(CANARY) is None


def test_a_secret_that_was_replaced_is_known_at_once(folder):
    secrets = Secrets(folder)
    (folder / "TOKEN").write_text("another-token")
    assert secrets.named_in("another-token") == "TOKEN"


def test_a_message_that_was_cut_in_the_middle_of_a_secret_is_redacted(folder):
    assert Secrets(folder).redacted(f"at {CANARY[:6]}") == "at [secret TOKEN]"
    assert Secrets(folder).redacted(f"{CANARY}, {CANARY}") == "[secret TOKEN], [secret TOKEN]"


LINES = 'begin "key"\nab\\cd/+= \u00fc end'


@pytest.mark.parametrize(
    "write", [str, repr, json.dumps, partial(json.dumps, ensure_ascii=False), quote, quote_plus]
)
def test_a_key_of_several_lines_is_found_however_it_is_spelt(folder, write):
    (folder / "PEM").write_text(LINES + "\n")
    text = write(LINES)
    assert Secrets(folder).named_in([text]) == "PEM"
    shown = Secrets(folder).redacted(f"refused: {text}, {text[:-6]}")
    assert "ab" not in shown and "[secret PEM]" in shown


# --- in a run


def one_call(fn, *, hook=None, **options) -> Agent:
    leak = tool(name="leak", **options)(fn)
    if hook is not None:
        leak.reconcile(hook)
    agent = Agent("one", tools=[leak])

    @agent.decide
    def decide(state):
        done = [m for m in state.messages if m["role"] == "tool"]
        return Succeed(done[0]["content"]) if done else Call("leak")

    return agent


def raises(error):
    def leak(ctx):
        raise error(f"GET https://api/?token={ctx.secret('TOKEN')} refused")

    return leak


def keeps_in_vars(ctx):
    ctx.vars.set("token", str(ctx.secret("TOKEN")))
    return "kept"


async def leak_async(ctx):
    return {"sent": f"Bearer {ctx.secret('TOKEN')}"}


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda ctx: f"Bearer {ctx.secret('TOKEN')}", "the result contains the secret TOKEN"),
        (leak_async, "the result contains the secret TOKEN"),
        (keeps_in_vars, "the change of vars contains the secret TOKEN"),
        (lambda ctx: "x" * 300_000 + ctx.secret("TOKEN"), "the result contains the secret TOKEN"),
        (raises(NotDone), "[secret TOKEN]"),
        (raises(RuntimeError), "[secret TOKEN]"),
    ],
)
@pytest.mark.parametrize("effect", ["read", "write"])
def test_a_result_or_error_is_refused_by_name_and_the_outcome_stays(fn, said, effect, folder):
    agent = one_call(fn, effect=effect)
    result = run_agent(agent, secrets_dir=folder, people=[settle("happened")])
    shown = f"{result.events} {result.state} {result.log}"
    assert CANARY not in shown
    assert said in shown


def test_a_secret_object_itself_cannot_be_stored_either(folder):
    result = run_agent(one_call(lambda ctx: [ctx.secret("TOKEN")]), secrets_dir=folder)
    assert CANARY not in f"{result.events} {result.state}"


def test_what_a_hook_finds_is_looked_through_too(folder):
    def leak(ctx):
        raise ConnectionError("lost")

    def find(ctx):
        return Happened({"as": str(ctx.secret("TOKEN"))})

    agent = one_call(leak, hook=find, effect="write", on_doubt="reconcile")
    result = run_agent(agent, secrets_dir=folder)
    assert result.output == {"$refused": "the result contains the secret TOKEN"}
    assert CANARY not in str(result.events)


@pytest.mark.parametrize(
    ("says", "outcome"), [(Happened({"ref": 1}), "happened"), (DidNotHappen(), "did_not_happen")]
)
def test_what_a_hook_has_found_out_stays_although_its_vars_held_a_secret(folder, says, outcome):
    """As an unknown it would have been asked again and again, and then a person."""

    def leak(ctx):
        if ctx.attempt == 1:
            raise ConnectionError("lost")
        return "done"

    def find(ctx):
        ctx.vars.set("token", str(ctx.secret("TOKEN")))
        return says

    agent = one_call(leak, hook=find, effect="write", on_doubt="reconcile")
    result = run_agent(agent, secrets_dir=folder)
    (settled,) = [event for event in result.events if event.type == "effect_settled"]
    assert (settled.data.outcome, settled.data.by) == (outcome, "agent")
    assert CANARY not in str(result.events)
    note = {"$refused": "the change of vars contains the secret TOKEN"}
    assert result.output == (note if outcome == "happened" else "done")


def test_a_tool_that_a_model_makes_up_is_not_named_by_a_secret(folder):
    model = ScriptedModel([Reply(None, [Call(CANARY, {})])])
    result = run_agent(Agent("chat"), model=model, secrets_dir=folder)
    assert CANARY not in f"{result.events} {result.state}"
    assert "contains the secret TOKEN" in str(result.events)


def test_arguments_that_code_decides_are_refused_before_they_are_stored(folder):
    @tool
    def send(ctx, token: str) -> str:
        raise AssertionError("it must not be called")

    agent = Agent("one", tools=[send])
    agent.decide(lambda state: Call("send", {"token": CANARY}))
    result = run_agent(agent, secrets_dir=folder)
    assert result.status == "failed"
    assert "plan_made contains the secret TOKEN" in result.error["message"]
    assert CANARY not in str(result.events) and result.calls == []


@pytest.mark.parametrize("command", [Succeed(CANARY), Fail(f"no: {CANARY}")])
def test_an_output_is_refused_too(command, folder):
    agent = Agent("one")
    agent.decide(lambda state: command)
    result = run_agent(agent, secrets_dir=folder)
    assert (result.status, CANARY in str(result.events)) == ("failed", False)
    assert "contains the secret TOKEN" in result.error["message"]


@pytest.mark.parametrize(
    "reply", [Reply(f"the token is {CANARY}"), Reply(None, [Call("leak", {"a": CANARY})])]
)
def test_what_a_model_says_is_looked_through(reply, folder):
    agent = Agent("chat", tools=[tool(name="leak")(lambda ctx, a: a)])
    result = run_agent(agent, model=ScriptedModel([reply]), secrets_dir=folder)
    assert CANARY not in f"{result.events} {result.state}"
    assert "contains the secret TOKEN" in str(result.events)


def test_without_the_guard_the_canary_would_be_there(folder):
    """The control: the same run with a folder that has other secrets."""
    other = folder.parent / "other"
    other.mkdir()
    (other / "ELSE").write_text("something else")
    result = run_agent(one_call(lambda ctx: CANARY), secrets_dir=other)
    assert CANARY in str(result.events)


def test_logs_are_redacted_with_their_tracebacks(folder, caplog):
    caplog.handler.addFilter(RedactSecrets(Secrets(folder)))
    try:
        raise RuntimeError(f"token {CANARY}")
    except RuntimeError:
        logging.getLogger("some").exception("failed with %s", CANARY)
    assert CANARY not in caplog.text
    assert caplog.text.count("[secret TOKEN]") == 2


# --- in a real process

LEAKY = """
import logging
from stillrun import Agent, Call, Succeed, tool

@tool(effect="write", on_doubt="retry")
def leak(ctx):
    token = ctx.secret("TOKEN")
    ctx.log.warning("using %s", str(token))
    ctx.log.warning("using %r", token)
    if ctx.attempt == 1:
        raise RuntimeError("refused: " + token)
    return {"sent": "Bearer " + token}

agent = Agent("leaky", tools=[leak])

@agent.decide
def decide(state):
    done = [m for m in state.messages if m["role"] == "tool"]
    return Succeed(done[0]["content"]) if done else Call("leak")
"""


def test_a_canary_appears_in_no_file_and_no_log_of_real_services(folder, tmp_path):
    modules, data = tmp_path / "agents", tmp_path / "data"
    modules.mkdir()
    (modules / "leaky.py").write_text(LEAKY)
    settings = {"SNAPSHOT_EVERY": "1", "LOG_LEVEL": "DEBUG"}
    with (
        StoreProcess(data, **settings) as store,
        AgentProcess(store.url, modules, SECRETS_DIR=folder, LOG_LEVEL="DEBUG") as agent,
    ):
        requests.put(f"{store.url}/runs/r", json={"agent": "leaky"}, timeout=10)

        def ended():
            found = requests.get(f"{store.url}/runs/r", timeout=10).json()
            return found if found["status"] in ("succeeded", "failed") else None

        shown = eventually(ended, "the run ends")
        output = agent.output + store.output
    assert shown["output"] == {"$refused": "the result contains the secret TOKEN"}
    assert "using [secret TOKEN]" in output and "using Secret('...')" in output
    files = [path for path in data.rglob("*") if path.is_file()]
    assert any(path.suffix == ".snap" for path in files)
    stored = b"".join(path.read_bytes() for path in files)
    assert b"$refused" in stored and b"[secret TOKEN]" in stored
    assert CANARY not in output and CANARY.encode() not in stored
