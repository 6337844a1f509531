"""Holds, bookings, mails: keys, numbers, lookups and the ledger."""

from concurrent.futures import ThreadPoolExecutor

import pytest

SEAT = {"route": "LIS-OSL", "carrier": "Dune", "seat": "12A"}
MAIL = {"to": "ana@example.com", "subject": "Gebucht", "body": "Bis bald ✈"}
PLACES = [
    ("holds", "hold", SEAT, {"hold": "H-1", **SEAT}),
    ("bookings", "booking", {**SEAT, "price": 212}, {"booking": "B-1", **SEAT, "price": 212}),
    ("mails", "mail", MAIL, {"mail": "M-1"}),
]


@pytest.mark.parametrize(("place", "kind", "body", "answer"), PLACES)
def test_a_write_is_answered_recorded_and_found_by_its_key(world, place, kind, body, answer):
    body = {"run": "trip-1", **body}
    given = world.post(f"/{place}", body, "k1")
    assert (given.status_code, given.get_json()) == (201, answer)
    assert "Idempotent-Replayed" not in given.headers
    found = world.get(f"/{place}/by-key/k1")
    assert (found.status_code, found.get_json()) == (200, answer)
    ledger = world.ledger("trip-1")
    assert ledger["applied"] == [
        {"run": "trip-1", "kind": kind, "key": "k1", "body": body, "answer": answer, "n": 1}
    ]
    assert ledger["counts"] == {
        "bookings": 0,
        "holds": 0,
        "mails": 0,
        "repeats": 0,
        "key_reused": 0,
        "failed": 0,
        place: 1,
    }
    assert [r["outcome"] for r in ledger["requests"]] == ["applied", "lookup_found"]


@pytest.mark.parametrize(("place", "kind", "body", "answer"), PLACES)
def test_a_known_key_repeats_its_first_answer_and_is_applied_once(world, place, kind, body, answer):
    body = {"run": "trip-1", **body}
    world.post(f"/{place}", body, "k1")
    again = world.post(f"/{place}", dict(reversed(body.items())), "k1")
    assert (again.status_code, again.get_json()) == (201, answer)
    assert again.headers["Idempotent-Replayed"] == "true"
    counts = world.ledger()["counts"]
    assert (counts[place], counts["repeats"]) == (1, 1)


@pytest.mark.parametrize("other", [{"seat": "14C"}, {"price": 212.0}, {"run": "trip-2"}])
def test_a_known_key_with_another_body_is_refused_and_counted(world, other):
    world.book()
    reused = world.book(**other)
    assert (reused.status_code, reused.get_json()["code"]) == (422, "key_reused")
    assert world.ledger()["counts"]["key_reused"] == 1
    assert world.ledger()["counts"]["bookings"] == 1


def test_without_a_key_every_request_is_applied(world):
    answers = [world.book(key=None).get_json()["booking"] for _ in range(3)]
    assert answers == ["B-1", "B-2", "B-3"]


def test_the_same_key_at_two_places_names_two_things(world):
    world.book(key="k1")
    hold = world.post("/holds", {"run": "trip-1", **SEAT}, "k1")
    assert hold.get_json()["hold"] == "H-1"
    assert world.ledger()["counts"]["repeats"] == 0


def test_numbers_count_per_run_so_that_a_twin_gets_the_same_answers(world):
    one = [world.book("run", f"a{n}").get_json() for n in range(2)]
    twin = [world.book("twin", f"b{n}").get_json() for n in range(2)]
    assert one == twin


def test_a_key_nobody_used_is_not_found_and_the_question_is_in_the_ledger(world):
    answer = world.get("/bookings/by-key/nobody")
    assert (answer.status_code, answer.get_json()["code"]) == (404, "no_such_key")
    assert world.outcomes() == ["lookup_missing"]


def test_a_lookup_belongs_to_the_run_that_the_key_names(world):
    world.get("/bookings/by-key/trip-1.5f0c.4.9b21aa07")
    world.get("/bookings/by-key/trip.1.5f0c.4.9b21aa07")
    world.get("/bookings/by-key/trip-1")
    assert world.outcomes("trip-1") == ["lookup_missing"]
    assert world.outcomes("trip.1") == ["lookup_missing"]


def test_the_ledger_of_one_run_holds_nothing_of_another(world):
    world.book("trip-1", "k1")
    world.book("trip-2", "k2")
    assert [done["run"] for done in world.ledger("trip-2")["applied"]] == ["trip-2"]
    assert [request["key"] for request in world.ledger("trip-2")["requests"]] == ["k2"]
    assert len(world.ledger()["applied"]) == 2


def test_forty_threads_with_one_key_book_once_and_all_get_the_first_answer(world):
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: world.book().get_json(), range(40)))
    assert all(answer == answers[0] for answer in answers)
    counts = world.ledger()["counts"]
    assert (counts["bookings"], counts["repeats"]) == (1, 39)


def test_forty_threads_without_a_key_get_forty_numbers(world):
    with ThreadPoolExecutor(40) as pool:
        got = list(pool.map(lambda _: world.book(key=None).get_json()["booking"], range(40)))
    assert sorted(got) == sorted(f"B-{n}" for n in range(1, 41))
