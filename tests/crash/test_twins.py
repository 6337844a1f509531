"""Twins (I12): a run killed at any points ends like its twin that never was.

Sixty seeded moments; `CRASH_SEEDS=17` (or `60-119`) plays others, and a failure is replayed by

    CRASH_SEEDS=17 python -m pytest tests/crash/test_twins.py -k seed-17
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from stillrun.essence import essence

from .lane import TRIPS, Lane, Played
from .logs import applied_twice, damage, differences, doubted
from .moments import STRATA, VICTIMS, Moment, Place, Victim, moment_of
from .processes import WorldProcess
from .tap import When

LANES = 4  # runs at once: most of a case is waiting for a lease to end or a process to start
CASE_S = 200.0  # a case waits for those before it

CARELESS = Path(__file__).parent / "careless"
ASKING = Path(__file__).parent / "asking"


def _seeds() -> list[int]:
    seeds: list[int] = []
    for part in os.environ.get("CRASH_SEEDS", f"0-{len(STRATA) - 1}").split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def _seed_of(place: Place, when: When, victim: Victim) -> int:
    return STRATA.index((place, when, victim))


class Campaign:
    """Plays cases in lanes that are used again and again; a lane that failed is thrown away."""

    def __init__(self, folder: Path, world: str) -> None:
        self._folder, self._world = folder, world
        self._lanes: queue.SimpleQueue[Lane | None] = queue.SimpleQueue()
        for _ in range(LANES):
            self._lanes.put(None)
        self._pool = ThreadPoolExecutor(LANES, thread_name_prefix="lane")
        self._made = 0
        self._lock = threading.Lock()
        self.twins = [self._submit(f"twin-{trip}", trip, None) for trip in range(len(TRIPS))]
        self.cases: dict[int, Future[Played]] = {}

    def add(self, moment: Moment) -> None:
        run = f"trip-{moment.seed}"
        self.cases[moment.seed] = self._submit(run, moment.trip, moment)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        for _ in range(LANES):
            lane = self._lanes.get()
            if lane is not None:
                lane.__exit__(None, None, None)

    def _submit(self, run: str, trip: int, moment: Moment | None) -> Future[Played]:
        return self._pool.submit(self._play, run, trip, moment)

    def _play(self, run: str, trip: int, moment: Moment | None) -> Played:
        lane = self._lanes.get()
        try:
            lane = lane or self._new_lane()
            return lane.play(run, trip, moment)
        except BaseException:
            if lane is not None:
                lane.__exit__(None, None, None)
            lane = None
            raise
        finally:
            self._lanes.put(lane)

    def _new_lane(self) -> Lane:
        with self._lock:
            self._made += 1
            folder = self._folder / f"lane-{self._made}"
        return Lane(folder, self._world).__enter__()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorldProcess]:
    with WorldProcess(tmp_path_factory.mktemp("world")) as process:
        yield process


@pytest.fixture(scope="module")
def campaign(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    world: WorldProcess,
) -> Iterator[Campaign]:
    """All selected cases, on their way; each test waits for its own."""
    campaign = Campaign(tmp_path_factory.mktemp("lanes"), world.url)
    for item in request.session.items:
        seed = getattr(item, "callspec", None) and item.callspec.params.get("seed")
        if seed is not None and item.path == request.path:
            campaign.add(moment_of(seed))
    yield campaign
    campaign.close()


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in _seeds()])
def test_a_run_killed_at_a_seeded_moment_ends_like_its_twin(campaign: Campaign, seed: int) -> None:
    moment = moment_of(seed)
    print(moment)
    twin = campaign.twins[moment.trip].result(CASE_S)
    played = campaign.cases[seed].result(CASE_S)
    print(f"{played.seconds:.1f} s", *played.kills, sep="\n")
    assert differences(twin.state, twin.ledger, played.state, played.ledger) == []
    assert damage(played.events, played.ledger) == []
    assert played.lost == []


@pytest.mark.parametrize("trip", range(len(TRIPS)))
def test_a_twin_holds_books_and_mails_once_and_meets_no_doubt(
    campaign: Campaign, trip: int
) -> None:
    twin = campaign.twins[trip].result(CASE_S)
    assert twin.ledger["counts"] == {
        **dict.fromkeys(("holds", "bookings", "mails"), 1),
        **dict.fromkeys(("repeats", "key_reused", "failed"), 0),
    }
    assert essence(twin.state)["status"] == "succeeded"
    assert (damage(twin.events, twin.ledger), doubted(twin.events)) == ([], 0)


def test_the_kills_were_kills_and_hit_what_they_were_for(campaign: Campaign) -> None:
    """Floors: a campaign that killed nobody, or only idle services, has shown nothing."""
    if len(campaign.cases) < len(STRATA):
        pytest.skip("the floors are those of all sixty moments")
    played = [case.result(CASE_S) for case in campaign.cases.values()]
    kills = [kill for one in played for kill in one.kills]
    for one in played:
        for nth, death in (
            (nth, death) for nth, kill in enumerate(one.kills) for death in kill.deaths
        ):
            assert death.code == -signal.SIGKILL, death
            # A second kill may meet a parent that has not started its child yet.
            assert nth > 0 or len(death.pids) >= 2, death
    victims = Counter(kill.victim for kill in kills)
    in_flight = Counter(name for kill in kills for name in kill.open.values())
    doubts = sum(doubted(one.events) for one in played)
    seconds = sum(len(one.kills) - 1 for one in played)
    people = sum(one.settled_by_people for one in played)
    print(
        f"{len(kills)} kills {dict(victims)}, {seconds} of them while recovering; "
        f"{sum(bool(kill.open) for kill in kills)} with an effect open, {dict(in_flight)}; "
        f"{doubts} doubts, {people} settled by people"
    )
    assert all(victims[victim] >= 20 for victim in VICTIMS)
    assert seconds >= 10
    assert sum(bool(kill.open) for kill in kills) >= 30
    assert all(in_flight[write] >= 6 for write in ("hold", "book", "mail"))
    assert doubts >= 20


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_doubt_that_only_a_person_can_settle_ends_like_its_twin(
    tmp_path: Path, world: WorldProcess, when: When
) -> None:
    """`asking` books with no policy but to ask: the person says what the ledger says (I7)."""
    moment = replace(moment_of(_seed_of("booking", when, "agent")), asked=False, second=None)
    with Lane(tmp_path, world.url, modules=ASKING) as lane:
        twin = lane.play(f"asking-twin-{when}", moment.trip)
        played = lane.play(f"asking-{when}", moment.trip, moment)
    assert played.settled_by_people == 1
    assert differences(twin.state, twin.ledger, played.state, played.ledger) == []
    assert damage(played.events, played.ledger) == []
    # Nobody but the person's word started it again.
    attempts = [r for r in played.ledger["requests"] if r["kind"] == "booking"]
    assert len(attempts) == 1


def test_the_harness_finds_a_tool_that_forgets_its_key_and_denies_what_it_did(
    tmp_path: Path, world: WorldProcess
) -> None:
    """Positive control: `careless` books without a key, and its hook says it never happened."""
    moment = moment_of(_seed_of("booking", "after", "agent"))
    with Lane(tmp_path, world.url, modules=CARELESS) as lane:
        twin = lane.play("careless-twin", moment.trip)
        played = lane.play("careless", moment.trip, moment)
    assert applied_twice(twin.ledger) == []
    assert played.ledger["counts"]["bookings"] == 2
    assert any("booking was applied 2 times" in wrong for wrong in applied_twice(played.ledger))
    assert any(
        wrong.startswith("output is")
        for wrong in differences(twin.state, twin.ledger, played.state, played.ledger)
    )
