"""The values that Stillrun carries: refused at the door by name, compared by type."""

from __future__ import annotations

import copy
import datetime

import pytest
from hypothesis import given

from stillrun import values
from stillrun.errors import InvalidParameter, UnsupportedValue
from stillrun.values import (
    MAX_AT_MS,
    MAX_INT,
    MIN_AT_MS,
    MIN_INT,
    args_digest,
    canonical,
    check_name,
    check_run_id,
    from_rfc3339,
    lookup,
    merge_patch,
    plain,
    pointer_join,
    pointer_tokens,
    rfc3339,
    same,
    validate,
)
from unit.shared import anything

LONE = "\ud800"


def nested(kinds: str, inside: object = 1) -> object:
    """Containers around a value, the last letter innermost: l(ist), d(ict), t(uple)."""
    for kind in reversed(kinds):
        inside = {"l": [inside], "d": {"k": inside}, "t": (inside,)}[kind]
    return inside


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        (float("nan"), ""),
        ([1, float("inf")], "/1"),
        ({"a": {"b": float("-inf")}}, "/a/b"),
        ({"n": MAX_INT + 1}, "/n"),
        ({"n": [MIN_INT - 1]}, "/n/0"),
        pytest.param([0, 10**4300], "/1", id="4,301 digits"),
        (LONE, ""),
        ([f"fine {LONE}"], "/0"),
        ({"a": {f"k{LONE}": 1}}, "/a"),
        ({"a": [{1: "x"}]}, "/a/0"),
        ({"": {None: 1}}, "/"),
        ({"a": {True: 1}}, "/a"),
        ({"a": {b"k": 1}}, "/a"),
        ({"a/b": {"~": {1, 2}}}, "/a~1b/~0"),
        ([datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)], "/0"),
        ((1, (2, object())), "/1/1"),
        ([bytearray(b"x")], "/0"),
        ([1j], "/0"),
    ],
)
def test_what_json_and_msgpack_cannot_both_hold_is_refused_with_its_place(value, pointer):
    with pytest.raises(UnsupportedValue) as refused:
        validate(value)
    assert refused.value.facts == {"pointer": pointer}
    assert (refused.value.code, refused.value.status) == ("unsupported_value", 422)


@pytest.mark.parametrize(
    "edge", [MIN_INT, MAX_INT, 2**53 + 1, 5e-324, -0.0, "\0", "é", "😀", b"\xff"]
)
def test_the_edges_of_what_both_can_hold_are_taken(edge):
    validate([edge, {"k": edge}])


@pytest.mark.parametrize("kinds", ["l", "d", "t", "ld", "dlt"])
def test_sixty_four_levels_are_taken_and_the_sixty_fifth_is_refused(kinds):
    levels = (kinds * 65)[:65]
    validate(nested(levels[:64]))
    with pytest.raises(UnsupportedValue) as refused:
        validate(nested(levels))
    assert refused.value.facts["pointer"].count("/") == 64


def test_an_empty_container_counts_as_a_level():
    with pytest.raises(UnsupportedValue):
        validate(nested("l" * 64, []))


def test_a_value_of_a_hundred_thousand_levels_is_refused_without_a_recursion_error():
    with pytest.raises(UnsupportedValue):
        validate(nested("l" * 100_000))


@given(anything.values)
def test_whatever_is_made_of_plain_values_is_taken(value):
    validate(value)


# --- typed equality

THREE_ONES_AND_MORE = [
    0, 0.0, -0.0, False, None, "", b"", [], {}, 1, 1.0, True, "1", b"1", [1], [1.0], [True],
    {"a": 1}, {"a": 1.0}, {"a": True}, {"a": None}, {"": 1}, [[]], [{}], ["a", 1], ["a1"], "a1",
    2**63, float(2**63), {"a": 1, "b": 2}, [["a", 1], ["b", 2]], ["ab"], ["a", "b"], [["a"], "b"],
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(THREE_ONES_AND_MORE)))
def test_values_are_the_same_only_if_their_types_are(place):
    value = THREE_ONES_AND_MORE[place]
    for other_place, other in enumerate(THREE_ONES_AND_MORE):
        assert same(value, other) is (place == other_place)
        assert (canonical(value) == canonical(other)) is (place == other_place)
        assert (args_digest(value) == args_digest(other)) is (place == other_place)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([1, {"x": [], "y": {}}], (1, {"y": {}, "x": ()})),
        ({"é": 1, "z": 2, "😀": 3}, {"😀": 3, "z": 2, "é": 1}),
    ],
)
def test_the_order_of_keys_and_the_kind_of_sequence_are_no_difference(a, b):
    assert same(a, b)
    assert args_digest(a) == args_digest(b)


@given(anything.values, anything.values)
def test_bytes_for_digests_are_equal_exactly_if_the_values_are_the_same(a, b):
    assert (canonical(a) == canonical(b)) is same(a, b)
    assert canonical(copy.deepcopy(a)) == canonical(a)
    assert same(a, copy.deepcopy(a))


def test_a_digest_is_the_same_on_every_machine_in_every_year():
    args = {"route": "LIS-OSL", "price": 219, "x": [1.5, None, True, b"\0"]}
    assert canonical(args) == b"m3:s5:pricei219;s5:routes7:LIS-OSLs1:xl4:d1.5;ntb1:\0"
    assert args_digest(args) == "85be3b31206572c0ba4e158bec561c47"


def test_a_digest_of_what_is_no_value_is_refused():
    with pytest.raises(UnsupportedValue):
        canonical({"a": {1, 2}})


# --- merge patch

RFC_7396 = [  # appendix A
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "result"), RFC_7396)
def test_a_merge_patch_does_what_rfc_7396_shows(target, patch, result):
    before = copy.deepcopy((target, patch))
    assert same(merge_patch(target, patch), result)
    assert same((target, patch), before)


@given(anything.values, anything.values)
def test_a_merge_patch_changes_neither_target_nor_patch(target, patch):
    before = canonical([target, patch])
    merge_patch(target, patch)
    assert canonical([target, patch]) == before


@given(anything.values, anything.values)
def test_a_merge_patch_done_twice_is_done_once(target, patch):
    once = merge_patch(target, patch)
    assert same(merge_patch(once, patch), once)


# --- instants


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2024-04-16T08:43:09.420317+05:30", "2024-04-16T03:13:09.420Z"),
        ("2100-01-01T01:01:00Z", "2100-01-01T01:01:00.000Z"),
        ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999Z"),
        ("1969-12-31T23:59:59.500000Z", "1969-12-31T23:59:59.500Z"),
        ("1969-12-31T23:59:59.999999999Z", "1969-12-31T23:59:59.999Z"),
        ("2024-02-29t00:00:00z", "2024-02-29T00:00:00.000Z"),
        ("2024-01-01T00:00:00-00:00", "2024-01-01T00:00:00.000Z"),
        ("2024-01-01T00:00:00-23:59", "2024-01-01T23:59:00.000Z"),
        ("2038-01-19T03:14:08Z", "2038-01-19T03:14:08.000Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
        ("0987-06-05T00:00:00.1Z", "0987-06-05T00:00:00.100Z"),
    ],
)
def test_an_instant_is_the_same_instant_in_utc_to_the_millisecond(text, utc):
    at_ms = from_rfc3339(text, "due")
    assert rfc3339(at_ms) == utc
    assert from_rfc3339(utc, "due") == at_ms


@pytest.mark.parametrize("at_ms", [MIN_AT_MS, -1, 0, 1, 999, 1_000, 2**31 * 1000, MAX_AT_MS])
def test_every_instant_that_is_shown_can_be_read_again(at_ms):
    assert from_rfc3339(rfc3339(at_ms), "at") == at_ms


def test_instants_sort_as_text_as_they_do_in_time():
    instants = [MIN_AT_MS, -(10**12), -1, 0, 10**9, 10**12, MAX_AT_MS]
    assert sorted(map(rfc3339, instants)) == list(map(rfc3339, instants))


@pytest.mark.parametrize(
    "text",
    [
        "2024-03-31T02:30:00",
        "2016-12-31T23:59:60Z",
        "2024-02-30T00:00:00Z",
        "2023-02-29T00:00:00Z",
        "2024-13-01T00:00:00Z",
        "2024-01-01T24:00:00Z",
        "2024-01-01T00:60:00Z",
        "2024-01-01T00:00:00+24:00",
        "2024-01-01T00:00:00+05:99",
        "2024-01-01T00:00:00+0530",
        "2024-01-01T00:00:00,5Z",
        "2024-01-01T00:00:00.Z",
        "2024-01-01T00:00:00.0123456789Z",
        "2024-01-01 00:00:00Z",
        "2024-01-01",
        "2024-W01-1T00:00:00Z",
        "20240101T000000Z",
        "2024-01-01T00:00:00Z\n",
        " 2024-01-01T00:00:00Z",
        "10000-01-01T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "9999-12-31T23:59:59-01:00",
        "0001-01-01T00:00:00+01:00",
        "２024-01-01T00:00:00Z",
        "2024-01-01T00:00:00.\u0661Z",
        "",
        "now",
        None,
        1_700_000_000_000,
        ["2024-01-01T00:00:00Z"],
    ],
)
def test_a_time_that_is_no_certain_instant_is_refused_by_name(text):
    with pytest.raises(InvalidParameter) as refused:
        from_rfc3339(text, "due")
    assert refused.value.facts == {"parameter": "due"}


# --- ids and pointers


@pytest.mark.parametrize(
    "run",
    [*"ord ord-a ord-1-2 ord-12 ord.snap ord.1 ord_1 1 01 10 ORD a~b a. a..b x".split(), "x" * 128],
)
def test_odd_but_harmless_run_ids_are_taken_as_they_are(run):
    assert check_run_id(run) == run


@pytest.mark.parametrize(
    "run",
    [
        "..", ".", "%2e%2e", "..%2foutside", "..\\outside", "a/../b", "/abs", "a%00b", "a%0ab",
        ".hidden", "-rf", "_a", "~a", "x" * 300, "x" * 129, "😀" * 86, "", "ord:1", "a@17", "a b",
        "a\0b", "a\n", "\na", "é", "١", None, 7, b"a", ["a"], LONE,
    ],
)  # fmt: skip
def test_a_run_id_that_could_lead_out_of_its_folder_is_refused(run):
    with pytest.raises(InvalidParameter) as refused:
        check_run_id(run)
    assert (refused.value.status, refused.value.facts) == (400, {"parameter": "run"})


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 64])
def test_names_of_tags_and_tools_are_taken(name):
    assert check_name(name, "tag") == name


@pytest.mark.parametrize("name", ["", "9a", ".a", "a b", "x" * 65, "a\n", "é", "@-3", None])
def test_a_name_that_could_be_read_as_something_else_is_refused(name):
    with pytest.raises(InvalidParameter) as refused:
        check_name(name, "tag")
    assert refused.value.facts == {"parameter": "tag"}


@pytest.mark.parametrize("event_id", ["0" * 32, "0123456789abcdef" * 2])
def test_an_event_id_is_32_hex_digits(event_id):
    assert values.check_event_id(event_id, "/events/0/id") == event_id


@pytest.mark.parametrize(
    "event_id", ["", "0" * 31, "0" * 33, "A" * 32, "g" * 32, "0" * 32 + "\n", 1]
)
def test_an_event_id_of_another_shape_is_refused(event_id):
    with pytest.raises(InvalidParameter):
        values.check_event_id(event_id, "/events/0/id")


@pytest.mark.parametrize("key", ["", "a", "a/b", "~0", "~1", "a.b", "/", "~", "0", " "])
def test_a_pointer_leads_to_the_key_it_was_made_of(key):
    tokens = pointer_tokens(pointer_join(pointer_join("", key), 1))
    assert tokens == [key, "1"]
    assert lookup({key: ["x", "y"], "other": 1}, tokens) == "y"


@pytest.mark.parametrize("token", ["-1", "01", "+1", "1.0", "2", "-", "", "١", "9" * 5000, "a"])
def test_a_token_that_is_no_place_of_a_list_leads_nowhere(token):
    with pytest.raises(LookupError):
        lookup(["x", "y"], [token])


def test_bytes_are_shown_in_json_and_never_read_back_from_it():
    shown = plain({"a": [b"\xff\x00", {"b": b""}], "t": (1, None)})
    assert shown == {"a": [{"$bytes": "/wA="}, {"b": {"$bytes": ""}}], "t": [1, None]}
    assert plain(shown) == shown


def test_a_value_that_fits_builds_no_pointers(monkeypatch):
    """They cost more than all the rest of a large body's judgement."""
    monkeypatch.setattr(values, "pointer_join", None)
    validate({"a": [{"b": [0, 1.5, True, None, "é", b"x"]}], "c": ("d",)})


@pytest.mark.parametrize("pointer", ["/nowhere", "/list/7", "/list/x", "/list/1/deeper", "/text/0"])
def test_a_pointer_names_the_token_that_leads_nowhere(pointer):
    tokens = pointer_tokens(pointer)
    with pytest.raises(LookupError) as lost:
        lookup({"list": [1, 2], "text": "t"}, tokens)
    assert lost.value.args[0] in tokens and type(lost.value) is LookupError
