"""What a tool was given in confidence stays out of the log of its run and of the service."""

from __future__ import annotations

import pytest

from stillrun import Agent, Call, NotDone, Succeed, tool


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
