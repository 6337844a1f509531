"""One request, its reply lost after the store has done it, and the client's own repeat (I4).

Always: the store's first answer is on tape, so "answered as at first" compares two real answers;
the client under test knows nothing of the loss; what the log held before the repeat, it holds
after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from lost_replies.kinds import KINDS, Kind, Stage, event
from lost_replies.relays import Tape, Taped, crash
from proxy import LossyProxy
from services import StoreProcess
from stillrun import codec, wire
from stillrun.client import StoreClient, new_id
from stillrun.errors import OutcomeUnknown, StillrunError

RETRY_FOR_S = 15.0  # a restart takes half a second

_runs = count(1)

KNOWN = [kind for kind in KINDS if kind.known]
FENCED = [kind for kind in KINDS if kind.fenced]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    # Few events between snapshots: ids are then found by the digests that a snapshot carries, too.
    with StoreProcess(tmp_path_factory.mktemp("store"), SNAPSHOT_EVERY="3") as process:
        yield process


@pytest.fixture
def stage(store: StoreProcess) -> Iterator[Stage]:
    with StoreClient(store.url, retry_for_s=RETRY_FOR_S) as direct:
        yield Stage(direct, f"run-{next(_runs)}")


@dataclass
class Played:
    """Both answers of the store, what the client made of them, and the log around the repeat."""

    first: Taped
    again: Taped
    answer: Any
    error: StillrunError | None
    log_before: list[Any]
    log_after: list[Any]


def play(
    kind: Kind,
    stage: Stage,
    store: StoreProcess,
    *,
    meanwhile: Callable[[], object] = lambda: None,
    how: str = "reply",
    connect: Callable[[str], StoreClient] | None = None,
) -> Played:
    """Send a request of this kind once and lose its reply; `meanwhile` comes before the repeat."""
    send = kind.ready(stage)
    before: list[Any] = []

    def between() -> None:
        meanwhile()
        before.extend(log_of(stage))

    connect = connect or (lambda url: StoreClient(url, retry_for_s=RETRY_FOR_S))
    answer, error = None, None
    with (
        Tape(store.url, between) as tape,
        LossyProxy(tape.url) as proxy,
        connect(proxy.url) as client,
    ):
        proxy.lose_if(lambda method, path, *_: path != "/", how=how)  # type: ignore[arg-type]
        try:
            answer = send(client)
        except StillrunError as refused:
            error = refused
        assert proxy.lost == 1, "the reply was not lost: this has shown nothing"
        assert len(tape.kept) == 2, f"{len(tape.kept)} requests instead of two"
        first, again = tape.kept
    return Played(first, again, answer, error, before, log_of(stage))


def log_of(stage: Stage) -> list[Any]:
    try:
        head = stage.head()
    except StillrunError:
        return []  # a run without a name is named by its answer
    return list(stage.direct.all_events(stage.run, to_seq=head))


def must_be_recognised(kind: Kind, played: Played) -> None:
    """The claim of this file."""
    first, again = played.first, played.again
    assert (first.method, first.path, first.sent) == (again.method, again.path, again.sent)
    told, repeated = (content(kind, taped) for taped in (first, again))
    assert repeated == told
    if kind.error is None:
        assert played.error is None
        assert first.status in (200, 201) and again.status == 200
    else:
        assert played.error is not None and played.error.code == kind.error
        assert first.status == again.status == 409
    if played.log_before:
        assert played.log_after == played.log_before
    ids = [stored.id for stored in played.log_after]
    assert len(set(ids)) == len(ids)


def content(kind: Kind, taped: Taped) -> Any:
    """What an answer says, as far as it must be the same."""
    if taped.status >= 400:
        problem = codec.decode_json(taped.body)
        return {name: problem.get(name) for name in ("status", "code", "head_seq", "detail")}
    body = codec.decode_msgpack(taped.body)
    return {name: body[name] for name in kind.compare} if kind.compare else body


@pytest.mark.parametrize("how", ["reply", "half"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_repeat_is_recognised_and_answered_as_at_first(kind, how, stage, store):
    must_be_recognised(kind, play(kind, stage, store, how=how))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_also_when_the_store_was_killed_and_came_back_in_between(kind, stage, store):
    must_be_recognised(kind, play(kind, stage, store, meanwhile=lambda: crash(store)))


@pytest.mark.parametrize("restart", [False, True], ids=["", "and the store was killed"])
@pytest.mark.parametrize("kind", KNOWN, ids=str)
def test_also_when_the_run_has_closed_in_between(kind, restart, stage, store):
    def close() -> None:
        if stage.direct.run(stage.run)["status"] not in ("succeeded", "cancelled"):
            stage.close()
        if restart:
            crash(store)

    played = play(kind, stage, store, meanwhile=close)
    assert stage.direct.run(stage.run)["status"] in ("succeeded", "cancelled")
    must_be_recognised(kind, played)


@pytest.mark.parametrize("restart", [False, True], ids=["", "and the store was killed"])
@pytest.mark.parametrize("kind", FENCED, ids=str)
def test_also_when_the_writer_was_fenced_in_between(kind, restart, stage, store):
    def fence() -> None:
        stage.fence()
        if restart:
            crash(store)

    must_be_recognised(kind, play(kind, stage, store, meanwhile=fence))


def test_a_grant_of_another_is_not_given_to_a_repeated_claim(stage, store):
    """A claim's repeat answers what the worker still holds, and never what it lost."""
    claim = next(kind for kind in KINDS if kind.name == "claim")

    def taken_over() -> None:
        stage.epoch = stage.head()
        stage.fence()

    played = play(claim, stage, store, meanwhile=taken_over)
    assert len(codec.decode_msgpack(played.first.body)["grants"]) == 1
    assert played.answer == []
    assert played.log_after == played.log_before


def test_a_renewal_repeated_after_a_takeover_says_that_the_lease_is_lost(stage, store):
    renew = next(kind for kind in KINDS if kind.name == "renew leases")
    played = play(renew, stage, store, meanwhile=stage.fence)
    assert [lease.held for lease in played.answer] == [False]
    assert played.log_after == played.log_before


def test_a_release_repeated_after_another_was_granted_takes_nothing_from_it(stage, store):
    release = next(kind for kind in KINDS if kind.name == "release a lease")
    played = play(release, stage, store, meanwhile=lambda: _settle_and_claim(stage))
    assert played.error is not None and played.error.code == "fenced"
    assert played.log_after == played.log_before
    assert stage.direct.run(stage.run)["lease"]["worker"] == f"another-{stage.run}"


def _settle_and_claim(stage: Stage) -> None:
    said = wire.SettleEffect(outcome="did_not_happen", by="ana")
    stage.direct.settle(stage.run, "e1", said)
    stage.claim(f"another-{stage.run}")


# --- positive control: the claim can fail


class Forgetful(StoreClient):
    """Repeats as a careless client would: the same content, but ids made anew."""

    def append(self, run: str, append: wire.AppendEvents, **options: Any) -> wire.Appended:
        for _ in range(2):
            events = [wire.NewEvent(type=e.type, data=e.data, id=new_id()) for e in append.events]
            body = wire.AppendEvents(events=events, epoch=append.epoch)
            try:
                return super().append(run, body, **options)
            except OutcomeUnknown:
                continue
        raise AssertionError("two replies lost")

    def send_message(self, run: str, message: wire.SendMessage) -> dict[str, Any]:
        try:
            return super().send_message(run, message)
        except OutcomeUnknown:
            anew = wire.SendMessage(content=message.content, by=message.by, id=new_id())
            return super().send_message(run, anew)


def some_vars(stage: Stage) -> Callable[[StoreClient], Any]:
    stage.hold()
    changed = event("vars_changed", change={"append": {"said": ["hello"]}})
    body = wire.AppendEvents(events=[changed], epoch=stage.epoch)
    return lambda client: client.append(stage.run, body)


@pytest.mark.parametrize(
    ("kind", "event_type"),
    [
        (next(kind for kind in KINDS if kind.name == "send a message"), "message_added"),
        (Kind("append vars", some_vars, known=True), "vars_changed"),
    ],
    ids=str,
)
def test_a_client_that_makes_new_ids_on_its_repeat_is_found_out(kind, event_type, stage, store):
    def forgetful(url: str) -> StoreClient:
        return Forgetful(url, retry_for_s=0.0)

    played = play(kind, stage, store, connect=forgetful)
    with pytest.raises(AssertionError):
        must_be_recognised(kind, played)
    assert [stored.type for stored in played.log_after].count(event_type) == 2
