"""An exchange that goes wrong: what was certainly not done, what nobody knows, what is final."""

from __future__ import annotations

import gzip
import logging
import socket
import time
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
import requests

from stillrun.agent import NotDone
from stillrun_agent.models import Endpoint, OpenAIModel
from stillrun_agent.models.endpoint import MAX_ANSWER_BYTES, MAX_RETRY_AFTER_S, REDACTED
from stillrun_agent.models.errors import (
    AnswerLate,
    AnswerLost,
    AnswerTooLarge,
    Busy,
    ContextTooLong,
    KeyRefused,
    ModelError,
    RequestRefused,
    SettingRefused,
)
from unit.models.conftest import KEY, asking
from unit.models.stub import (
    completion,
    cuts_a_chunk,
    cuts_without_length,
    floods,
    hangs,
    hangs_up,
    says,
    trickles,
)


@pytest.fixture
def fails(stub, openai):
    """The exception that this behaviour ends in."""

    def made(behaviour, model=openai):
        stub.does(behaviour)
        with pytest.raises((ModelError, NotDone)) as caught:
            model.reply(asking())
        assert isinstance(caught.value, Busy | ModelError)
        return caught.value

    return made


def error_body(message, **more):
    return {"error": {"message": message, "type": "invalid_request_error", **more}}


# --- nothing was done


@pytest.mark.parametrize("status", [408, 409, 425, 429, 503, 529])
def test_an_endpoint_that_has_no_room_did_nothing_and_is_asked_later(fails, status):
    error = fails(says(error_body("slow down"), status))
    assert type(error) is Busy
    assert 1.0 <= error.retry_in_s <= 1.1
    assert f"HTTP {status}" in str(error)
    assert "slow down" in str(error)


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("7", 7, 7.7),
        ("1.5", 1.5, 1.65),
        ("0", 0, 0),
        ("-3", 0, 0),
        ("nan", 0, 0),
        ("inf", MAX_RETRY_AFTER_S, 1.1 * MAX_RETRY_AFTER_S),
        ("999999999", MAX_RETRY_AFTER_S, 1.1 * MAX_RETRY_AFTER_S),
        ("soon", 1, 1.1),
        ("", 1, 1.1),
        ("Fri, 01 Jan 1999 00:00:00 GMT", 0, 0),
        ("Fri, 01 Jan 1999 00:00:00 -0000", 0, 0),
    ],
)
def test_retry_after_is_honoured_within_bounds(fails, header, least, most):
    error = fails(says({}, 429, {"Retry-After": header}))
    assert least <= error.retry_in_s <= most


def test_retry_after_may_be_a_date(fails):
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert 25 < fails(says({}, 503, {"Retry-After": date})).retry_in_s <= 33


def test_a_refused_connection_did_nothing():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Busy, match="cannot be reached") as caught:
        OpenAIModel(Endpoint(f"http://127.0.0.1:{port}/v1"), "m").reply(asking())
    assert caught.value.retry_in_s >= 1


def test_a_host_that_does_not_exist_did_nothing():
    with pytest.raises(Busy, match="cannot be reached"):
        OpenAIModel(Endpoint("http://nowhere.invalid/v1"), "m").reply(asking())


def test_a_certificate_that_does_not_fit_did_nothing(monkeypatch):
    def refuse(*args, **options):
        raise requests.exceptions.SSLError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate expired")

    monkeypatch.setattr(requests.Session, "send", refuse)
    with pytest.raises(Busy, match="cannot be reached"):
        OpenAIModel(Endpoint("https://127.0.0.1/v1"), "m").reply(asking())


# --- nobody knows


@pytest.mark.parametrize("status", [500, 502, 504, 520])
def test_an_error_that_may_come_after_the_work_leaves_a_doubt(fails, status):
    error = fails(says(b"<h1>oops</h1>", status))
    assert (type(error), error.doubt) == (AnswerLost, "error")
    assert "oops" in str(error)


def test_a_read_timeout_leaves_a_doubt(stub, fails):
    error = fails(hangs, OpenAIModel(Endpoint(stub.url, timeout_s=0.2), "m"))
    assert (type(error), error.doubt) == (AnswerLate, "timeout")
    assert "0.2 s" in str(error)


def test_an_answer_that_trickles_is_given_up_at_the_same_time(stub, fails):
    began = time.monotonic()
    error = fails(trickles, OpenAIModel(Endpoint(stub.url, timeout_s=0.4), "m"))
    assert type(error) is AnswerLate
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(says(completion("done"), more=10), id="shorter than its length"),
        pytest.param(cuts_a_chunk, id="within a chunk"),
        pytest.param(cuts_without_length, id="without a length"),
        pytest.param(hangs_up, id="before its first byte"),
        pytest.param(says(b""), id="empty"),
        pytest.param(says(b"<html>log in first</html>"), id="a page"),
        pytest.param(says(b'data: {"choices": []}\n\n'), id="a stream that nobody asked for"),
        pytest.param(says([]), id="a list"),
        pytest.param(says({}), id="nothing in it"),
        pytest.param(says({"choices": []}), id="no choice"),
        pytest.param(says({"choices": [{"message": None}]}), id="no message"),
        pytest.param(says({"choices": "x"}), id="choices of a wrong type"),
        pytest.param(says(b'{"a":' * 5000 + b"1" + b"}" * 5000), id="nested without end"),
    ],
)
def test_a_cut_or_unreadable_answer_leaves_a_doubt(fails, behaviour):
    error = fails(behaviour)
    assert (type(error), error.doubt) == (AnswerLost, "error")


# --- for good


def test_a_huge_answer_is_not_read_to_its_end(fails):
    error = fails(floods)
    assert (type(error), error.doubt) == (AnswerTooLarge, None)
    assert str(MAX_ANSWER_BYTES) in str(error)


def test_an_answer_that_unpacks_to_a_huge_one_is_not_unpacked_to_its_end(stub, fails):
    packed = gzip.compress(b" " * (4 * MAX_ANSWER_BYTES))
    error = fails(says(packed, headers={"Content-Encoding": "gzip"}))
    assert stub.asked[0].headers["Accept-Encoding"] == "identity"
    assert type(error) is AnswerTooLarge


@pytest.mark.parametrize("status", [401, 403])
def test_a_bad_key_is_final_and_says_which_setting_it_is(fails, status):
    error = fails(says(error_body("Incorrect API key provided"), status))
    assert (type(error), error.code, error.doubt) == (KeyRefused, "key_refused", None)
    assert "MODEL_KEY_FILE" in str(error)


@pytest.mark.parametrize("status", [400, 415, 422])
def test_a_request_that_is_refused_is_final_with_the_endpoints_own_words(fails, status):
    error = fails(says({"detail": "no model 'm'"}, status))
    assert (type(error), error.code) == (RequestRefused, "request_refused")
    assert "no model 'm'" in str(error)


@pytest.mark.parametrize("status", [402, 404, 405])
def test_a_wrong_name_or_address_or_an_unpaid_account_is_a_setting(fails, status):
    error = fails(says({"detail": "no model 'm'"}, status))
    assert (type(error), error.code, error.doubt) == (SettingRefused, "setting_refused", None)
    assert "no model 'm'" in str(error)


TOO_LONG = [
    (400, error_body("Too much", code="context_length_exceeded")),
    (400, error_body("This model's maximum context length is 4096 tokens. However, you ...")),
    (400, error_body("the request exceeds the available context size", type="exceed_context")),
    (400, error_body("prompt is too long: 208310 tokens > 200000 maximum")),
    (400, error_body("Prompt contains 70000 tokens, too large for model with 32768")),
    (400, error_body("The input token count (1200000) exceeds the maximum number of tokens")),
    (422, {"detail": "input length 9000 exceeds 8192"}),
    (400, {"object": "error", "message": "context window is full", "code": 400}),
    (413, b"<html>Request Entity Too Large</html>"),
]


@pytest.mark.parametrize(("status", "body"), TOO_LONG)
def test_a_conversation_that_is_too_long_is_told_as_such(fails, status, body):
    error = fails(says(body, status))
    assert (type(error), error.code, error.doubt) == (ContextTooLong, "context_too_long", None)
    assert str(error).startswith("the conversation is too long for the model")


def test_a_busy_endpoint_that_speaks_of_context_is_busy(fails):
    assert type(fails(says(error_body("context window of this minute"), 429))) is Busy


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (429, Busy),
        (401, KeyRefused),
        (400, RequestRefused),
        (502, AnswerLost),
        ("server_error", AnswerLost),
        (None, AnswerLost),
        (200, AnswerLost),
    ],
)
def test_an_error_inside_a_200_is_an_error(fails, code, kind):
    assert type(fails(says(error_body("provider", code=code)))) is kind


# --- the key


def everything(error, caplog):
    """What a log or an event could show of an exception and of the calls before it."""
    shown = "".join(traceback.format_exception(error))
    return "\n".join([shown, repr(error), *(r.getMessage() for r in caplog.records)])


ECHO = f"Incorrect API key provided: {KEY} for {KEY}"


@pytest.mark.parametrize(
    "behaviour",
    [
        says(error_body(ECHO), 401),
        says(error_body(ECHO), 400),
        says(error_body(ECHO), 429),
        says(error_body(ECHO), 500),
        says(error_body(ECHO)),
        says(ECHO.encode(), 502),
        says(ECHO.encode()),
        says(f'{{"error": "{ECHO}"}}'.replace("/", "\\/").encode(), 400),
        says({}, 307, {"Location": f"https://elsewhere/?key={KEY}"}),
        hangs_up,
    ],
)
def test_the_key_is_in_no_error_and_no_log(fails, caplog, behaviour):
    caplog.set_level(logging.DEBUG)
    error = fails(behaviour)
    assert KEY not in everything(error, caplog)
    assert "canary" not in everything(error, caplog)


@pytest.mark.parametrize("before", range(480, 501, 5))
@pytest.mark.parametrize("status", [400, 502])
def test_no_part_of_the_key_is_left_where_what_the_endpoint_says_is_cut(fails, before, status):
    error = fails(says(b"." * before + KEY.encode(), status))
    assert KEY[:5] not in str(error)


def test_the_key_is_in_no_reply_also_where_the_endpoint_repeats_it(stub, openai, caplog):
    caplog.set_level(logging.DEBUG)
    hidden = KEY.replace("s", "\\u0073", 1)  # as JSON within JSON may write it
    body = completion(ECHO, ("fare", f'{{"route": "{hidden}", "{KEY}": [1]}}'), (KEY, KEY))
    stub.does(says(body | {"model": KEY, "system_fingerprint": KEY}))
    reply = openai.reply(asking())
    assert stub.asked[0].headers["Authorization"] == f"Bearer {KEY}"  # the positive control
    assert "canary" not in repr(reply)
    assert reply.calls[0].args == {"route": REDACTED, REDACTED: [1]}
    assert "canary" not in caplog.text


def test_the_key_is_not_shown_where_the_http_client_would_show_it(openai, monkeypatch, caplog):
    def refuse(*args, **options):
        raise requests.ConnectionError(f"bad header: Bearer {KEY}")

    monkeypatch.setattr(requests.Session, "send", refuse)
    with pytest.raises(AnswerLost, match="bad header") as caught:
        openai.reply(asking())
    assert "canary" not in everything(caught.value, caplog)


@pytest.mark.parametrize(
    "content",
    [f"{KEY}\nsecond line", f"{KEY}\x00", f"{KEY} x", "", "\n", "k" * 20_000, "schlüssel"],
)
def test_a_key_file_that_holds_no_key_is_told_without_its_content(
    stub, openai, key_file, content, caplog
):
    """The HTTP client's own error for such a header shows the whole of it."""
    caplog.set_level(logging.DEBUG)
    key_file.write_text(content)
    stub.does(says(completion("ok")))
    with pytest.raises(KeyRefused, match="holds no key") as caught:
        openai.reply(asking())
    assert "canary" not in everything(caught.value, caplog)
    assert stub.asked == []


def test_the_key_is_read_for_each_call(stub, openai, key_file):
    stub.does(says(completion("ok")))
    openai.reply(asking())
    key_file.write_text("another")
    openai.reply(asking())
    assert [a.headers["Authorization"] for a in stub.asked] == [f"Bearer {KEY}", "Bearer another"]


def test_a_key_file_that_is_being_replaced_is_read_again_later(stub, openai, key_file):
    key_file.unlink()
    stub.does(says(completion("ok")))
    with pytest.raises(Busy, match="MODEL_KEY_FILE"):
        openai.reply(asking())
    assert stub.asked == []


def test_without_a_key_file_no_key_is_sent(stub, monkeypatch, tmp_path):
    stub.does(says(completion("ok")))
    OpenAIModel(Endpoint(stub.url), "m").reply(asking())
    assert "Authorization" not in stub.asked[0].headers


@pytest.mark.parametrize("with_key", [True, False])
def test_a_netrc_puts_no_other_password_in_its_place(stub, openai, monkeypatch, tmp_path, with_key):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login other password stolen\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    stub.does(says(completion("ok")))
    model = openai if with_key else OpenAIModel(Endpoint(stub.url), "m")
    model.reply(asking())
    expected = f"Bearer {KEY}" if with_key else None
    assert stub.asked[0].headers.get("Authorization") == expected


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_its_place_is_told(stub, fails, openai, status):
    error = fails(says({}, status, {"Location": "https://elsewhere/v1/chat/completions"}))
    assert type(error) is SettingRefused
    assert "https://elsewhere/v1/" in str(error)
    assert len(stub.asked) == 1
