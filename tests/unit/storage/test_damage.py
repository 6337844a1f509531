"""What was durable once and does not verify is damage: reported, refused, left as it is (I11)."""

from __future__ import annotations

import shutil

import msgpack
import pytest

from stillrun_store.storage import DamagedLog, RunExists
from stillrun_store.storage.format import FRAME, body_crc, directory_name
from unit.storage.faults import Unsynced, copy
from unit.storage.logs import LOG_ID, OTHER_ID, frame_offsets, payload, segment, tree, unsealed

EVENTS = 6
MIDDLE = 3  # the frame that is hurt holds this seq, unless a test says otherwise


@pytest.fixture(scope="module")
def unsealed_pair(tmp_path_factory):
    """Two runs, killed: no seal, no index."""
    return two_runs(tmp_path_factory.mktemp("damage"))


def two_runs(where, **options):
    from stillrun_store.storage import Engine
    from unit.storage.logs import NEVER_S

    engine = Engine.open(where / "live", seal_after_s=NEVER_S, files=Unsynced(), **options)
    engine.create("run", LOG_ID, [payload(1)])
    engine.create("other", OTHER_ID, [b"other"])
    for seq in range(2, EVENTS + 1):
        engine.append("run", [payload(seq)])
    copy(where / "live", where / "data")
    engine.close()
    return where / "data"


@pytest.fixture
def data(unsealed_pair, tmp_path):
    return copy(unsealed_pair, tmp_path / "data")


def flip(path, at, bit=0x10):
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def check_damaged(data, open_engine, seq, *, others=True, **options):
    """Reported with run and seq; what is before it is read; its bytes stay; other runs go on."""
    before = tree(data)
    for _ in range(2):  # a second start sees and does the same
        with open_engine(data, files=Unsynced(), **options) as engine:
            (damage,) = engine.recovery.damaged
            assert (damage.run, damage.seq) == ("run", seq)
            assert engine.info("run").damage == damage
            assert engine.read("run", 1, seq - 1) == [payload(n) for n in range(1, seq)]
            with pytest.raises(DamagedLog) as refused:
                engine.read("run", 1, seq)
            assert (refused.value.run, refused.value.seq) == ("run", seq)
            with pytest.raises(DamagedLog):
                engine.append("run", [b"more"])
            with pytest.raises(DamagedLog):
                engine.chain_at("run", seq)
            assert engine.recovery.torn_tails == []
            assert engine.recovery.half_made == []
            if others:
                head = engine.info("other").head_seq
                assert engine.append("other", [b"more"]).first_seq == head + 1
    after = tree(data)
    ours = f"runs/{directory_name('run')}/"
    assert {k: v for k, v in after.items() if k.startswith(ours)} == {
        k: v for k, v in before.items() if k.startswith(ours)
    }


@pytest.mark.parametrize("byte", range(FRAME.size))
def test_a_flipped_bit_in_a_header_in_the_middle_is_damage(data, open_engine, byte):
    flip(segment(data), frame_offsets(segment(data))[MIDDLE - 1] + byte)
    check_damaged(data, open_engine, MIDDLE)


@pytest.mark.parametrize("byte", range(FRAME.size, FRAME.size + len(payload(MIDDLE)) + 2, 5))
def test_a_flipped_bit_in_a_body_in_the_middle_is_damage(data, open_engine, byte):
    flip(segment(data), frame_offsets(segment(data))[MIDDLE - 1] + byte)
    check_damaged(data, open_engine, MIDDLE)


@pytest.mark.parametrize("byte", [0, 3, 20, 59, 60, 61, 70, 130, 180])
def test_a_flipped_bit_in_the_first_frame_is_damage_not_a_half_made_run(data, open_engine, byte):
    flip(segment(data), byte)
    before = tree(data)
    with open_engine(data, files=Unsynced()) as engine:
        (damage,) = engine.recovery.damaged
        assert damage.seq == 1 and damage.directory == directory_name("run")
        assert engine.recovery.half_made == []
        with pytest.raises(DamagedLog):
            engine.create("run", LOG_ID, [b"again"])
    assert {k: v for k, v in tree(data).items() if "run-" in k} == {
        k: v for k, v in before.items() if "run-" in k
    }


@pytest.mark.parametrize("byte", range(0, 135, 4))
@pytest.mark.parametrize("index", ["kept", "gone"])
def test_damage_in_the_last_frame_below_the_seal_is_no_torn_tail(
    tmp_path, open_engine, byte, index
):
    data = tmp_path / "data"
    with open_engine(data, files=Unsynced()) as engine:
        engine.create("run", LOG_ID, [payload(1)])
        engine.append("run", [payload(2)])
        engine.create("other", OTHER_ID, [b"other"])
    at = frame_offsets(segment(data))
    assert len(at) == 3  # two frames and the seal
    flip(segment(data), at[1] + byte)
    if index == "gone":
        shutil.rmtree(data / "index")
        check_damaged(data, open_engine, 2)
        return
    before = tree(data)
    with open_engine(data, files=Unsynced()) as engine:
        # The index trusts the size; the read finds it, and from then on it is known.
        with pytest.raises(DamagedLog):
            engine.read("run", 1, 2)
        assert engine.read("run", 1, 1) == [payload(1)]
        with pytest.raises(DamagedLog):
            engine.append("run", [b"more"])
    assert tree(data) == before
    check_damaged(data, open_engine, 2)


def test_damage_in_the_middle_that_a_read_has_met_is_known_to_the_next_start(data, open_engine):
    """The index states the end of the log, and all from there on is whole."""
    with open_engine(data, files=Unsynced()):
        pass
    flip(segment(data), frame_offsets(segment(data))[MIDDLE - 1] + FRAME.size + 3)
    with open_engine(data, files=Unsynced()) as engine:
        assert engine.recovery.damaged == []  # sealed, of the right size: nobody looked
        with pytest.raises(DamagedLog):
            engine.read("run", 1, EVENTS)
    check_damaged(data, open_engine, MIDDLE)


def test_a_damaged_place_is_no_matter_to_reads_that_do_not_need_it(data, open_engine):
    with open_engine(data, files=Unsynced()) as engine:
        flip(segment(data), frame_offsets(segment(data))[MIDDLE - 1] + FRAME.size + 3)
        assert engine.read("run", MIDDLE + 1, EVENTS) == [
            payload(seq) for seq in range(MIDDLE + 1, EVENTS + 1)
        ]
        with pytest.raises(DamagedLog, match=f"seq {MIDDLE}"):
            engine.read("run", 1, EVENTS)


@pytest.mark.parametrize("how", ["dropped", "doubled", "zeroed"])
@pytest.mark.parametrize("seq", [2, MIDDLE, EVENTS - 1])
def test_a_whole_frame_that_is_dropped_doubled_or_zeroed_is_damage(data, open_engine, how, seq):
    path = segment(data)
    whole, at = path.read_bytes(), frame_offsets(path)
    start, end = at[seq - 1], at[seq]
    middle = {"dropped": b"", "doubled": whole[start:end] * 2, "zeroed": bytes(end - start)}[how]
    path.write_bytes(whole[:start] + middle + whole[end:])
    check_damaged(data, open_engine, seq + 1 if how == "doubled" else seq)


def test_a_frame_that_verifies_but_contradicts_itself_is_no_torn_tail(data, open_engine):
    """No torn write has the right checksums: whatever made it, a person must look at it."""
    path, log_id, body = segment(data), bytes.fromhex(LOG_ID), msgpack.packb([b"event"])
    size, before = path.stat().st_size, FRAME.unpack(path.read_bytes(), frame_offsets(path)[-1])
    place = (log_id, size, EVENTS + 1, before[6])
    wrong_chain = before[5] ^ 1
    head = FRAME.pack(log_id, EVENTS + 1, 1, len(body), size, wrong_chain, body_crc(*place, body))
    path.write_bytes(path.read_bytes() + head + body)
    check_damaged(data, open_engine, EVENTS + 1)


def test_a_head_that_states_what_follows_it_as_durable_is_no_torn_tail(data, open_engine):
    path = segment(data)
    whole = path.read_bytes()
    head = FRAME.pack(bytes.fromhex(LOG_ID), EVENTS + 1, 1, 8, len(whole) + FRAME.size, 0, 0)
    path.write_bytes(whole + head)
    check_damaged(data, open_engine, EVENTS + 1)


def test_two_frames_that_changed_places_are_damage(data, open_engine):
    path = segment(data)
    whole, at = path.read_bytes(), frame_offsets(path)
    a, b = whole[at[1] : at[2]], whole[at[2] : at[3]]
    path.write_bytes(whole[: at[1]] + b + a + whole[at[3] :])
    check_damaged(data, open_engine, 2)


@pytest.mark.parametrize("lost", [1, 59, 60, 61, 200])
def test_a_log_shorter_than_the_index_says_is_damage(tmp_path, open_engine, lost):
    data = tmp_path / "data"
    with open_engine(data, files=Unsynced()) as engine:
        engine.create("run", LOG_ID, [payload(1)])
        engine.append("run", [payload(2)])
        engine.create("other", OTHER_ID, [b"other"])
        size = engine.sizes("run").log_bytes
    path = segment(data)
    path.write_bytes(path.read_bytes()[: size - lost])
    check_damaged(data, open_engine, 2 if lost < 135 else 1)


def test_a_log_shorter_than_a_snapshot_says_is_damage(tmp_path, open_engine):
    data = tmp_path / "data"
    with open_engine(data, files=Unsynced()) as engine:
        engine.create("run", LOG_ID, [payload(1)])
        engine.append("run", [payload(2)])
        engine.create("other", OTHER_ID, [b"other"])
        engine.put_snapshot("run", 1, b"state")
        size = engine.sizes("run").log_bytes
    shutil.rmtree(data / "index")
    path = segment(data)
    path.write_bytes(path.read_bytes()[: size - 1])
    check_damaged(data, open_engine, 2)


@pytest.fixture
def rolled(tmp_path):
    """Segments of two frames each."""
    return two_runs(tmp_path, max_segment_bytes=460)


def segments(data):
    return sorted(segment(data).parent.glob("events-*.log"))


def test_a_missing_segment_is_damage_from_its_first_seq_on(rolled, open_engine):
    gone = segments(rolled)[1]
    gone.unlink()
    check_damaged(rolled, open_engine, int(gone.name[7:27]))


def test_a_missing_first_segment_is_damage_at_seq_1(rolled, open_engine):
    segments(rolled)[0].unlink()
    check_damaged(rolled, open_engine, 1)


def test_a_missing_last_segment_is_damage_if_the_index_knew_it(rolled, open_engine):
    with open_engine(rolled, files=Unsynced()):
        pass
    gone = segments(rolled)[-1]
    gone.unlink()
    check_damaged(rolled, open_engine, int(gone.name[7:27]))


@pytest.mark.parametrize("which", [1, -1])
def test_a_segment_of_another_log_is_damage(rolled, open_engine, tmp_path, which):
    (tmp_path / "two").mkdir()
    other = tmp_path / "two" / "data"
    unsealed(other, EVENTS, files=Unsynced(), max_segment_bytes=460)
    donor = segments(other)[which]
    data = donor.read_bytes().replace(bytes.fromhex(LOG_ID), bytes.fromhex(OTHER_ID))
    foreign = bytearray(data)
    from zlib import crc32

    for at in frame_offsets(donor):  # whole, valid headers: of another log
        foreign[at + 56 : at + 60] = crc32(bytes(foreign[at : at + 56])).to_bytes(4, "big")
    target = segments(rolled)[which]
    target.write_bytes(foreign)
    check_damaged(rolled, open_engine, int(target.name[7:27]))


def test_two_segments_that_changed_names_are_damage(rolled, open_engine):
    one, two = segments(rolled)[1:3]
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    check_damaged(rolled, open_engine, int(one.name[7:27]))


@pytest.mark.parametrize("named, seq", [(2, 3), (9, EVENTS + 1)])
def test_a_segment_of_the_same_log_under_another_name_is_damage(rolled, open_engine, named, seq):
    """A copy somebody made by hand; it must neither be served nor cut."""
    one = segments(rolled)[-1]
    shutil.copy(one, one.with_name(f"events-{named:020d}.log"))
    check_damaged(rolled, open_engine, seq)


def test_a_snapshot_without_a_log_is_damage_and_no_new_run(data, open_engine):
    """Someone lost the log: the id must not be free, as if the run had never been."""
    with open_engine(data, files=Unsynced()) as engine:
        engine.put_snapshot("run", 2, b"state")
    shutil.rmtree(data / "index")
    segment(data).unlink()
    check_damaged(data, open_engine, 1)
    with open_engine(data, files=Unsynced()) as engine, pytest.raises(RunExists):
        engine.create("run", LOG_ID, [b"again"])


def test_a_torn_end_of_a_segment_that_has_a_successor_is_damage(rolled, open_engine):
    path = segments(rolled)[0]
    path.write_bytes(path.read_bytes()[: -FRAME.size - 1])  # its seal, and a byte of its last event
    check_damaged(rolled, open_engine, 2)


def test_a_missing_directory_is_damage_if_the_index_knew_it(data, open_engine):
    with open_engine(data, files=Unsynced()):
        pass
    shutil.rmtree(segment(data).parent)
    with open_engine(data, files=Unsynced()) as engine:
        (damage,) = engine.recovery.damaged
        assert (damage.run, damage.seq) == ("run", 1)
        with pytest.raises(DamagedLog):
            engine.read("run", 1, 1)
        assert engine.read("other", 1, 1) == [b"other"]


def test_a_segment_removed_under_a_running_store_is_noticed(data, open_engine):
    """The open file would take appends, acknowledge them, and be gone."""
    with open_engine(data, files=Unsynced()) as engine:
        engine.append("run", [b"more"])
        segment(data).unlink()
        engine.append("run", [b"into the void"])
        engine.flush()
        with pytest.raises(DamagedLog):
            engine.append("run", [b"more"])
        assert engine.append("other", [b"more"]).first_seq == 2


def test_a_log_that_cannot_be_read_is_damage_and_others_are_served(data, open_engine):
    import errno

    class BadSector(Unsynced):
        bad = True

        def pread(self, fd, count, offset):
            if self.bad and self.is_same_file(fd, segment(data)):
                raise OSError(errno.EIO, "input/output error")
            return super().pread(fd, count, offset)

    before = tree(data)
    with open_engine(data, files=BadSector()) as engine:
        assert [damage.seq for damage in engine.recovery.damaged] == [1]
        assert engine.read("other", 1, 1) == [b"other"]
        assert engine.recovery.half_made == []
    assert tree(data).keys() == before.keys()
    with open_engine(data, files=Unsynced()) as engine:
        assert engine.info("run").head_seq == EVENTS
        assert engine.recovery.damaged == []


def test_unknown_files_are_reported_and_left_alone(data, open_engine):
    strange = {
        data / "lost+found" / "x": "lost+found",
        data / "runs" / "notes.txt": "runs/notes.txt",
        data / "runs" / "not-a-run" / "y": "runs/not-a-run",
        segment(data).parent / "events-7.log": f"runs/{segment(data).parent.name}/events-7.log",
        segment(data).parent / "core": f"runs/{segment(data).parent.name}/core",
    }
    for path in strange:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    with open_engine(data, files=Unsynced()) as engine:
        assert sorted(engine.recovery.unknown) == sorted(strange.values())
        assert engine.recovery.damaged == []
        engine.append("run", [b"more"])
    assert all(path.read_text() == "mine" for path in strange)


def test_a_copy_of_a_run_directory_is_reported_and_not_served(data, open_engine):
    copied = copy(segment(data).parent, data / "runs" / "my-backup")
    before = tree(copied)
    with open_engine(data, files=Unsynced()) as engine:
        assert len(engine.runs()) == 2
        assert any("my-backup" in name for name in engine.recovery.unknown)
    assert tree(copied) == before


def test_a_first_frame_that_turned_into_deep_nesting_is_damage(tmp_path, open_engine):
    """Its events look like nested arrays once their length is gone; a decoder gives up on these
    in a way of its own, and the store must start all the same."""
    data = tmp_path / "data"
    with open_engine(data, files=Unsynced()) as engine:
        engine.create("run", LOG_ID, [b"\x91" * 3_000] * 20)
        engine.create("other", OTHER_ID, [b"other"])
    shutil.rmtree(data / "index")
    path = segment(data)
    whole = path.read_bytes()
    at = whole.index(b"\xc5\x0b\xb8\x91")
    path.write_bytes(whole[:at] + bytes(3) + whole[at + 3 :])
    with open_engine(data, files=Unsynced()) as engine:
        [damage] = engine.recovery.damaged
        assert damage.directory == path.parent.name
        assert engine.read("other", 1, 1) == [b"other"]


# --- what cannot be read


class Unreadable(Unsynced):
    """The disk refuses one call for the directory of one run, and for what is in it."""

    def __init__(self, call):
        self.call = call

    def _refuse(self, call, path):
        if call == self.call and any(part.startswith("run-") for part in path.parts):
            raise OSError(5, "EIO")

    def scan(self, path):
        self._refuse("scan", path)
        return super().scan(path)

    def open_read(self, path):
        self._refuse("open_read", path)
        return super().open_read(path)


@pytest.mark.parametrize("call", ["scan", "open_read"])
@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "no index"])
def test_a_run_that_the_disk_refuses_to_show_does_not_stop_the_start(
    tmp_path, open_engine, call, indexed
):
    two_runs(tmp_path)
    data = tmp_path / "data"
    if indexed:
        with open_engine(data, files=Unsynced()):
            pass
    if call == "open_read":
        path = segment(data)
        path.write_bytes(
            path.read_bytes()[: [*frame_offsets(path), path.stat().st_size][EVENTS]]
        )  # no seal: it is read
    with open_engine(data, files=Unreadable(call)) as engine:
        assert engine.read("other", 1, 1) == [b"other"]
        [damage] = engine.recovery.damaged
        assert damage.run == ("run" if indexed else "")
        with pytest.raises(DamagedLog):
            write = engine.append if indexed else engine.create
            write("run", *([] if indexed else [LOG_ID]), [b"new"])
    with open_engine(data, files=Unsynced()) as engine:
        assert engine.read("run", 1, EVENTS) == [payload(n) for n in range(1, EVENTS + 1)]


def test_a_tail_that_cannot_be_read_is_not_cut(data, open_engine):
    path = segment(data)
    flip(path, frame_offsets(path)[-1] + FRAME.size)
    before = path.read_bytes()

    class Refuses(Unsynced):
        """The second reading of the log, which looks for what was durable behind the tear."""

        opened = 0

        def open_read(self, path):
            if path.parent.name.startswith("run-"):
                self.opened += 1
                if self.opened > 2:
                    raise OSError(5, "EIO")
            return super().open_read(path)

    with open_engine(data, files=Refuses()) as engine:
        [damage] = engine.recovery.damaged
        assert (damage.run, damage.seq) == ("run", EVENTS)
    assert path.read_bytes() == before


def test_an_origin_with_numbers_that_no_head_can_hold_is_damage(rolled, open_engine):
    """A checksum that turned into a negative number: it cannot be packed to be compared."""
    path = segments(rolled)[0]
    whole = path.read_bytes()
    at = whole.index(b"\xacprevious_crc\0") + 13
    path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
    check_damaged(rolled, open_engine, 1)


def test_a_torn_segment_behind_a_missing_one_is_no_torn_roll(tmp_path, open_engine):
    """Nothing but its name says that events were lost before it."""
    data = unsealed(tmp_path / "data", 24, files=Unsynced(), max_segment_bytes=1_000)
    _, second, third, *later = sorted(segment(data).parent.glob("events-*.log"))
    for path in (second, *later):
        path.unlink()
    third.write_bytes(b"torn")
    missing_seq = int(second.name[7:27])
    check_damaged(data, open_engine, missing_seq, others=False, max_segment_bytes=1_000)
