"""A store whose machine loses power loses nothing that it acknowledged (I1, I2), on ext4 and XFS.

Twenty cuts, half of them on each file system; more by

    POWER_ROUNDS=1000 python -m pytest tests/power/test_power_cuts.py

A round is chosen by its seed, which is printed: `POWER_SEED=7` begins with that one.
"""

from __future__ import annotations

import os
import random

import pytest

from power.load import Load, Sent, acknowledged, faults
from power.volume import FILE_SYSTEMS, MODES, Volume
from services import StoreProcess

ROUNDS = int(os.environ.get("POWER_ROUNDS", "20")) // len(FILE_SYSTEMS)
FIRST_SEED = int(os.environ.get("POWER_SEED", "1"))
ROUNDS_PER_VOLUME = 20  # a fresh one then: volumes are small, and checking all runs takes time
CONTROLS = 10


class SmallStore(StoreProcess):
    module = "power.small_store"


def cut_under_load(volume: Volume, sent: list[Sent], seed: int) -> None:
    """Write until the power goes; what was there before must be there when it begins."""
    dice = random.Random(seed)
    mode, acks, writes = MODES[seed % len(MODES)], dice.randint(30, 150), dice.randint(1, 60)
    with SmallStore(volume.path / "data", SNAPSHOT_EVERY="5") as store:
        assert faults(store.url, sent) == (0, [])
        print(f"seed {seed}: cut {mode} after {acks} acknowledgements and {writes} writes")
        with Load(store.url, dice, sent) as load:
            load.wait_for_acks(acks)
            volume.cut(mode, seed, writes=writes)
            load.wait_for_the_end()
    volume.power_on()


@pytest.mark.timeout(60 + 10 * ROUNDS)
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_no_power_cut_loses_or_changes_what_was_acknowledged(file_system, new_volume):
    for start in range(0, ROUNDS, ROUNDS_PER_VOLUME):
        seeds = range(FIRST_SEED + start, FIRST_SEED + min(start + ROUNDS_PER_VOLUME, ROUNDS))
        sent: list[Sent] = []
        with new_volume(file_system) as volume:
            for seed in seeds:
                cut_under_load(volume, sent, seed)
            with SmallStore(volume.path / "data") as store:
                assert faults(store.url, sent) == (0, [])
            counts = volume.counts()
            segments = list(volume.path.glob("data/runs/*/events-*.log"))
            snapshots = list(volume.path.glob("data/runs/*/*.snap"))
        print(f"{acknowledged(sent)} events acknowledged; the disk: {counts}")
        assert counts["cuts"] == len(seeds) and counts["lost"] > 0
        assert acknowledged(sent) > 30 * len(seeds)
        assert len(segments) > len(sent) and snapshots  # some logs have rolled


@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_the_harness_finds_a_store_that_does_not_sync(file_system, new_volume):
    lost: list[int] = []
    sent: list[Sent] = []
    with new_volume(file_system) as volume:
        for seed in range(CONTROLS // len(FILE_SYSTEMS) + 1):
            settings = {"SNAPSHOT_EVERY": "5", "POWER_CARELESS": "1"}
            with SmallStore(volume.path / "data", **settings) as store:
                lost.append(faults(store.url, sent)[0])  # of the round before
                sent = []
                with Load(store.url, random.Random(seed), sent) as load:
                    load.wait_for_acks(100)
                    volume.cut("none")  # now: when such a store writes is the kernel's affair
                store.kill_all()
            volume.power_on()
    print(f"acknowledged events lost in each round: {lost[1:]}")
    assert all(lost[1:]) and len(lost) > 5
