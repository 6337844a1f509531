"""What an author's function becomes, and what is refused while the file is loaded."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import pytest

from stillrun import Agent, Approval, AuthoringError, Context, tool
from stillrun.agent import BadArguments

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers


@dataclasses.dataclass
class Leg:
    start: str
    end: str


def test_a_read_is_repeated_and_a_write_asks_a_person_unless_told_otherwise():
    @tool
    def look(ctx): ...

    @tool(effect="write")
    def pay(ctx): ...

    @tool(effect="write", on_doubt="retry")
    def put(ctx): ...

    assert (look.effect, look.on_doubt, look.writes) == ("read", "retry", False)
    assert (pay.effect, pay.on_doubt, pay.writes) == ("write", "ask", True)
    assert put.on_doubt == "retry"


def test_name_and_description_come_from_the_function():
    @tool(name="look-up")
    async def look(ctx, what: str):
        """Look
        something up."""

    assert (look.name, look.description, look.is_async) == (
        "look-up",
        "Look\nsomething up.",
        True,
    )


def test_the_schema_says_what_the_signature_says():
    @tool
    def book(ctx: Context, route: str, price: int, legs: list[str] = ["a"], note=None): ...  # noqa: B006

    assert book.schema == {
        "title": "book_args",
        "type": "object",
        "properties": {
            "route": {"type": "string"},
            "price": {"type": "integer"},
            "legs": {"type": "array", "items": {"type": "string"}, "default": ["a"]},
            "note": {"default": None},
        },
        "required": ["route", "price"],
        "additionalProperties": False,
    }


def test_arguments_arrive_typed_with_defaults_filled_in():
    @tool
    def travel(ctx, leg: Leg, seats: int = 2): ...

    bound = travel.bind({"leg": {"start": "LIS", "end": "OSL"}})
    assert bound == {"leg": Leg("LIS", "OSL"), "seats": 2}


def test_a_default_is_never_shared_between_calls():
    @tool
    def collect(ctx, into: list = []): ...  # noqa: B006

    collect.bind({})["into"].append("left behind")
    assert collect.bind({}) == {"into": []}


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"route": "A"}, "price"),
        ({"route": 1, "price": 2}, "route"),
        ({"route": "A", "price": True}, "price"),
        ({"route": "A", "price": 2.5}, "price"),
        ({"route": "A", "price": "2"}, "price"),
        ({"route": "A", "price": 2, "prize": 3}, "prize"),
        ([], "object"),
        (None, "object"),
    ],
)
def test_wrong_arguments_are_refused_naming_the_place(args, named):
    @tool
    def book(ctx, route: str, price: int): ...

    with pytest.raises(BadArguments, match=named):
        book.bind(args)


def test_types_that_exist_for_checkers_only_are_allowed_on_the_context_and_nowhere_else():
    @tool
    def look(ctx: OnlyForCheckers, n: int): ...

    assert look.bind({"n": 1}) == {"n": 1}
    with pytest.raises(AuthoringError, match="OnlyForCheckers"):

        @tool
        def pay(ctx, amount: OnlyForCheckers): ...


NOTHING_PLAIN = object()


def generates(ctx):
    yield 1


@pytest.mark.parametrize(
    ("fn", "named"),
    [
        (lambda: None, "context"),
        (lambda *, ctx: None, "context"),
        (lambda *args: None, "context"),
        (lambda ctx="LIS": None, "context"),
        (lambda ctx, *args: None, "args"),
        (lambda ctx, **more: None, "more"),
        (lambda ctx, a, /, b: None, "a"),
        (lambda ctx, at=NOTHING_PLAIN: None, "default of 'at'"),
        (lambda ctx, at=float("nan"): None, "default of 'at'"),
        (Leg, "function"),
        (generates, "function"),
    ],
)
def test_a_function_that_cannot_be_called_by_name_is_refused(fn, named):
    with pytest.raises(AuthoringError, match=named):
        tool(name="t")(fn)


def test_a_forgotten_context_is_found():
    with pytest.raises(AuthoringError, match="route"):

        @tool
        def fare(route: str): ...


def test_a_type_that_no_message_can_carry_is_refused():
    with pytest.raises(AuthoringError, match="'look'"):

        @tool
        def look(ctx, ctx2: Context): ...


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"effect": "maybe"}, "effect"),
        ({"on_doubt": "never"}, "on_doubt"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"retries": -1}, "retries"),
        ({"retries": 1.0}, "retries"),
        ({"retries": 101}, "retries"),
        ({"backoff_s": 0}, "backoff_s"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"timeout_s": float("inf")}, "timeout_s"),
        ({"timeout_s": "soon"}, "timeout_s"),
        ({"name": "no spaces"}, "tool"),
        ({"approve": True}, "approve"),
        ({"approve": Approval("{price}")}, "price"),
        ({"approve": Approval("Go on?", edit=["price"])}, "price"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(settings, named):
    with pytest.raises(AuthoringError, match=named):
        tool(**{"name": "look", **settings})(lambda ctx, route: None)


def test_a_tool_is_still_its_function():
    @tool
    def double(ctx, n: int) -> int:
        return 2 * n

    assert double(None, n=4) == 8


def reconciled(hook):
    @tool(effect="write", on_doubt="reconcile")
    def book(ctx, route: str, price: int): ...

    return book, book.reconcile(hook)


def test_a_hook_takes_what_the_tool_takes():
    async def find(ctx, route, price): ...

    book, hook = reconciled(find)
    assert book.reconcile_hook is hook is find


@pytest.mark.parametrize(
    "hook",
    [lambda ctx: None, lambda ctx, route: None, lambda ctx, route, price, more: None, "find"],
)
def test_a_hook_that_does_not_take_the_arguments_is_refused(hook):
    with pytest.raises(AuthoringError, match="hook"):
        reconciled(hook)


def test_a_second_hook_and_a_hook_without_its_policy_are_refused():
    book, hook = reconciled(lambda ctx, **args: None)
    with pytest.raises(AuthoringError, match="already"):
        book.reconcile(hook)
    pay = tool(effect="write", name="pay")(lambda ctx: None)
    with pytest.raises(AuthoringError, match="reconcile"):
        pay.reconcile(lambda ctx: None)


# --- what a fork answers instead


def test_a_simulate_hook_takes_what_the_tool_takes_and_answers_in_its_place():
    book = tool(effect="write", name="book")(lambda ctx, route: "booked")

    @book.simulate
    async def pretend(ctx, route: str) -> str:
        return f"as if {route}"

    pretended = book.pretending()
    assert (book.simulate_hook, pretended.fn, pretended.is_async) == (pretend, pretend, True)
    assert (book(None, "x"), book.is_async) == ("booked", False), "the tool itself stays as it is"


@pytest.mark.parametrize(
    "hook",
    [lambda ctx: None, lambda ctx, route, more: None, "pretend", dict, lambda ctx, route: (yield)],
)
def test_a_simulate_hook_that_cannot_work_is_refused(hook):
    book = tool(effect="write", name="book")(lambda ctx, route: "booked")
    with pytest.raises(AuthoringError, match="simulate hook"):
        book.simulate(hook)


def test_a_second_simulate_hook_and_one_of_a_read_are_refused():
    book = tool(effect="write", name="book")(lambda ctx: None)
    book.simulate(lambda ctx: None)
    with pytest.raises(AuthoringError, match="already"):
        book.simulate(lambda ctx: None)
    look = tool(name="look")(lambda ctx: None)
    with pytest.raises(AuthoringError, match="simulate is for writes"):
        look.simulate(lambda ctx: None)


def test_an_agent_as_a_tool_can_be_simulated_for_its_run_may_write():
    ask = Agent("other").as_tool("ask")
    ask.simulate(lambda ctx, input: "as if")
    assert ask.acts and ask.pretending().agent is None and ask.agent is not None


# --- approvals


def broken(args):
    raise KeyError("price")


ODD: Any = {"route": "LIS-OSL", "price": [1, {"a": None}]}


@pytest.mark.parametrize(
    ("show", "args", "text"),
    [
        ("Book {route} for {price}", {"route": "LIS-OSL", "price": 219}, "Book LIS-OSL for 219"),
        ("{price:.2f} euros", {"price": 219}, "219.00 euros"),
        ("{price:.2f} euros", ODD, "[1, {'a': None}] euros"),
        ("{route!r}", ODD, "'LIS-OSL'"),
        ("{{literal}} {route}", ODD, "{literal} LIS-OSL"),
        ("{route} {seats}", {"route": "{price.__class__}"}, "{price.__class__} 2"),
        ("{price}", {}, "?"),
    ],
)
def test_the_question_shows_the_arguments_whatever_they_are(show, args, text):
    @tool(approve=Approval(show))
    def book(ctx, route, price, seats=2): ...

    assert book.approval_for(args).prompt(args) == text


@pytest.mark.parametrize(
    "settings",
    [
        {"show": "{route.__class__}"},
        {"show": "{route[0]}"},
        {"show": "{}"},
        {"show": "{0}"},
        {"show": "{route"},
        {"show": "{route:{width}}"},
        {"show": 1},
        {"show": "Go on?", "deadline_s": 0},
        {"show": "Go on?", "deadline_s": float("nan")},
        {"show": "Go on?", "default": "maybe"},
    ],
)
def test_an_approval_that_cannot_work_is_refused(settings):
    with pytest.raises(AuthoringError):
        Approval(**settings)


def test_a_preview_is_made_of_the_arguments_and_the_defaults():
    def preview(args):
        args["to"] = args["to"].upper()  # a slip that must not reach the call
        return f"{args['to']} gets {args['text'][:2]}… ({len(args['text'])} characters)"

    args = {"text": "hello"}
    mail = tool(approve=Approval(preview, edit=["text"]), name="mail")(
        lambda ctx, text, to="me": None
    )
    assert mail.approval_for(args).prompt(args) == "ME gets he… (5 characters)"
    assert args == {"text": "hello"}


def gives_no_text(args):
    return {"not": "a text"}


@pytest.mark.parametrize("preview", [broken, gives_no_text])
def test_a_preview_that_fails_asks_with_the_bare_arguments(preview, caplog):
    pay = tool(approve=Approval(preview), name="pay")(lambda ctx, amount, to="me": None)
    asked = pay.approval_for({"amount": 1}).prompt({"amount": 1})
    assert asked == "(no preview) to: me, amount: 1"
    assert "preview failed" in caplog.text


@pytest.mark.parametrize(
    "show", [lambda: "x", lambda args, more: "x", 1, None, dict.get, lambda args: (yield)]
)
def test_a_preview_that_cannot_work_is_refused(show):
    with pytest.raises(AuthoringError, match="show"):
        Approval(show)


async def waits(args):
    return "x"


def test_a_preview_is_no_coroutine():
    with pytest.raises(AuthoringError, match="plain function"):
        Approval(waits)


@pytest.mark.parametrize("show", ["{text}", lambda args: args["text"]])
def test_a_question_fits_into_an_event_whatever_the_model_wrote(show):
    mail = tool(approve=Approval(show), name="mail")(lambda ctx, text: None)
    for text in ("é" * 1_000_000, "\ud800"):
        asked = mail.approval_for({"text": text}).prompt({"text": text})
        assert len(asked.encode()) < 100_000
    assert (
        mail.approval_for({"text": "x" * 20_007})
        .prompt({"text": "x" * 20_007})
        .endswith("… (7 more characters)")
    )


@pytest.mark.parametrize("silent", [None, False])
def test_a_rule_may_let_a_call_pass(silent):
    pay = tool(approve=lambda args: silent, name="pay")(lambda ctx, price: None)
    assert pay.approval_for({"price": 1}) is None


@pytest.mark.parametrize("rule", [lambda args: True, lambda args: Approval("{other}"), broken])
def test_a_rule_that_says_yes_or_fails_asks_a_person(rule):
    pay = tool(approve=rule, name="pay")(lambda ctx, price, to="me": None)
    assert pay.approval_for({"price": 1}).prompt({"price": 1}) == "pay(1, me)?"


def test_a_rule_sees_the_defaults_too():
    seen = []
    pay = tool(approve=seen.append, name="pay")(lambda ctx, price, to="me": None)
    pay.approval_for({"price": 1})
    assert seen == [{"price": 1, "to": "me"}]


def test_a_call_gets_arguments_of_its_own():
    """The fold has them too: what a tool does to its own must show in no repeat and no answer."""

    @tool
    def order(ctx, body, items: list, more: dict): ...

    args = {"body": {"q": [1]}, "items": [{"a": 1}], "more": {"b": [1]}}
    bound = order.bind(args)
    bound["body"]["q"].append(2)
    bound["items"][0]["a"] = 2
    bound["more"]["b"].append(2)
    assert args == {"body": {"q": [1]}, "items": [{"a": 1}], "more": {"b": [1]}}


def test_an_approve_rule_gets_arguments_of_its_own():
    def rule(args):
        args["body"]["seen"] = True
        return False

    @tool(effect="write", approve=rule)
    def order(ctx, body: dict, more: dict = {}): ...  # noqa: B006

    args = {"body": {}}
    order.approval_for(args)
    assert args == {"body": {}}


def test_sys_exit_in_a_rule_or_a_preview_asks_a_person_and_ends_nothing(caplog):
    @tool(effect="write", approve=lambda args: sys.exit(1))
    def send(ctx, to: str): ...

    approval = send.approval_for({"to": "ana"})
    assert approval is not None and approval.prompt({"to": "ana"}) == "send(ana)?"
    shown = Approval(lambda args: sys.exit(1)).prompt({"to": "ana"})
    assert shown == "(no preview) to: ana"
