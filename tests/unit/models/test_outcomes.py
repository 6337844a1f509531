"""What the end of a model call is on record as: failed, asked again, or in doubt."""

from __future__ import annotations

import pytest

from stillrun.agent import NotDone
from stillrun.events import EffectDoubted, EffectFailed, EffectSucceeded, ModelReply, Usage
from stillrun_agent.models import MeteredReply
from stillrun_agent.models.errors import MODEL_ERRORS, AnswerLate, AnswerLost, Busy, ModelError
from stillrun_agent.outcomes import MAX_MODEL_TRIES, MAX_MODEL_WAITS, facts_of
from stillrun_agent.tools import Call, Outcome, problem_of

CASES = [kind for kind in MODEL_ERRORS.values() if not issubclass(kind, AnswerLost)]


def fact_of(end, attempt=1):
    """The one fact of a model call that ended in this reply, or in this exception."""
    call = Call(
        run="r", effect="e1", key="k", attempt=attempt, epoch=2, kind="model", name="m", timeout_s=9
    )
    if isinstance(end, NotDone):
        outcome = Outcome(
            call=call, what="not_done", error=problem_of(end), retry_in_s=end.retry_in_s
        )
    elif isinstance(end, Exception):
        outcome = Outcome(call=call, what="raised", error=problem_of(end))
    else:
        outcome = Outcome(call=call, what="returned", value=end)
    (fact,) = facts_of(outcome, lambda data: "0" * 64)
    return fact


def test_a_reply_is_recorded_without_its_meter_which_stands_beside_it():
    usage = Usage(input_tokens=3, model="m-1", fingerprint="fp", seed=5)

    result = {"content": "hi", "calls": []}
    assert fact_of(MeteredReply(content="hi", usage=usage)) == EffectSucceeded(
        effect="e1", result=result, usage=usage
    )
    assert fact_of(ModelReply(content="hi")) == EffectSucceeded(effect="e1", result=result)


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.code)
def test_what_is_final_has_failed_under_its_code(kind):
    fact = fact_of(kind("why"))
    assert isinstance(fact, EffectFailed)
    assert (fact.error.type, fact.error.message, fact.retry_in_s) == (kind.code, "why", None)


@pytest.mark.parametrize("kind", [AnswerLost, AnswerLate])
def test_what_nobody_knows_is_in_doubt_and_asked_again_by_policy(kind):
    fact = fact_of(kind("why"))
    assert isinstance(fact, EffectDoubted)
    assert (fact.why, fact.error.type, fact.ask) == (kind.doubt, kind.code, False)
    waits = [fact_of(kind("why"), attempt=n).retry_in_s for n in range(1, 8)]
    assert waits == [0, 1, 2, 4, 8, 16, 32]


def test_what_may_have_been_billed_is_not_asked_for_ever():
    fact = fact_of(AnswerLost("why"), attempt=MAX_MODEL_TRIES)
    assert isinstance(fact, EffectFailed)
    assert (fact.error.type, fact.retry_in_s) == ("answer_lost", None)


def test_a_busy_endpoint_is_asked_when_it_says_and_from_try_to_try_later():
    waits = [fact_of(Busy("b", retry_in_s=3), attempt=n).retry_in_s for n in range(1, 14)]
    assert waits == [3, 3, 3, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert fact_of(Busy("b", retry_in_s=900), attempt=5).retry_in_s == 900
    assert fact_of(Busy("b", retry_in_s=3), attempt=MAX_MODEL_WAITS).retry_in_s is None


def test_an_authors_model_may_say_that_nothing_was_done():
    assert fact_of(NotDone("no", retry_in_s=0.05)).retry_in_s == 0.05
    assert fact_of(NotDone("no")).retry_in_s is None


def test_any_other_exception_ends_the_run():
    fact = fact_of(LookupError("why"))
    assert isinstance(fact, EffectFailed)
    assert (fact.error.type, fact.retry_in_s) == ("LookupError", None)


def test_every_model_error_is_known_by_its_class():
    def tree(kind):
        return {kind, *(found for sub in kind.__subclasses__() for found in tree(sub))}

    assert set(MODEL_ERRORS.values()) == tree(ModelError)
    assert len({kind.code for kind in tree(ModelError)}) == len(MODEL_ERRORS)
