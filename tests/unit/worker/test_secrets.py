"""What a tool was given in confidence stays out of the log of its run and of the service."""

from __future__ import annotations

import pytest

from stillrun import Agent, Call, NotDone, Succeed, tool, wire
from stillrun.testing import ContextTooLong


@pytest.mark.parametrize("kind", [RuntimeError, NotDone])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_secret_in_the_text_of_an_exception_is_not_told(stage, tmp_path, caplog, kind, is_async):
    (tmp_path / "TOKEN").write_text("hunter2")

    def fail(ctx):
        try:
            raise ValueError(f"the cause: {ctx.secret('TOKEN')}")
        except ValueError as cause:
            raise kind(f"401 for https://api/?token={ctx.secret('TOKEN')}") from cause

    @tool
    def read(ctx):
        fail(ctx)

    @tool
    async def read_async(ctx):
        fail(ctx)

    used = read_async if is_async else read
    agent = Agent("a", tools=[used])
    agent.decide(lambda s: Succeed(s.messages[-1]["content"]) if s.messages else Call(used.name))
    stage.worker(agent, secrets_dir=tmp_path)
    run = stage.run(agent)
    assert run.ends()["output"]["message"] == "401 for https://api/?token=[secret TOKEN]"
    assert "hunter2" not in repr(run.events())
    assert "hunter2" not in caplog.text
    if kind is RuntimeError:
        assert "the cause: [secret TOKEN]" in caplog.text


def by_decide(fail):
    agent = Agent("a")
    agent.decide(fail)
    return agent


def by_migration(fail):
    agent = Agent("a", version=2, migrations={1: fail})
    agent.decide(lambda state: Succeed())
    return agent


def by_compact(fail):
    def too_much(turn):
        raise ContextTooLong("too much")

    agent = Agent("a", offline=too_much)
    agent.compact(fail)
    return agent


@pytest.mark.parametrize("code", [by_decide, by_migration, by_compact])
def test_a_secret_in_what_an_authors_code_raises_is_not_in_the_reason_of_a_pause(
    stage, tmp_path, code
):
    (tmp_path / "TOKEN").write_text("hunter2-hunter2")

    def fail(given):
        raise ValueError("401 for token=hunter2-hunter2")

    agent = code(fail)
    run = stage.run(agent, agent_version=1)
    stage.client.send_message(run.run, wire.SendMessage(content="hi"))
    stage.worker(agent, secrets_dir=tmp_path)
    run.reaches("paused")
    (pause,) = run.events("run_paused")
    assert "ValueError: 401 for token=[secret TOKEN] at test_secrets.py:" in pause.data.reason
    assert "hunter2" not in repr(run.events())
