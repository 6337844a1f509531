"""Leases: who may work, when that ends, and what the end leaves behind (I5, I6)."""

import threading

import msgspec
import pytest

from contract.door import (
    Worker,
    at_once,
    event,
    good,
    intent_of,
    new_id,
    nobody_is_changed,
    note,
    refused,
)
from stillrun.errors import CorruptLog
from stillrun_store.storage import errors as disk

BIG_S = 30.0  # a poll in real seconds that a test never waits out


def names(grants):
    return [grant["run"] for grant in grants]


def poll(door, worker, **fields):
    """A claim that waits, in a thread; its grants arrive in the list."""
    found = []
    fields = {"timeout_s": BIG_S, **fields}
    thread = threading.Thread(target=lambda: found.append(door.grants(worker, **fields)))
    thread.start()
    return thread, found


# --- claims


def test_claims_grant_the_oldest_runs_first(door):
    for run in ("c", "a", "b"):
        door.start(run)
    assert names(door.grants(limit=2)) == ["c", "a"]
    assert names(door.grants("v", limit=5)) == ["b"]


def test_a_grants_epoch_is_its_seq_and_only_the_first_is_the_first(door):
    door.start()
    [grant] = door.grants()
    assert grant == {"run": "r", "epoch": 2, "head_seq": 2, "agent": "a", "first": True}
    good(Worker(door, "r", "w", 2).release())
    [grant] = door.grants("v")
    assert (grant["epoch"], grant["first"]) == (4, False)


@pytest.mark.parametrize("restart", [False, True])
def test_a_claim_whose_answer_was_lost_is_granted_again(door, restart):
    for run in ("r", "s"):
        door.start(run)
    claim = new_id()
    first = door.grants(claim=claim, limit=2)
    if restart:
        door.reopened()
    with nobody_is_changed(door):
        assert sorted(names(door.grants(claim=claim, limit=2))) == ["r", "s"]
        holding = [{"run": "r", "epoch": first[0]["epoch"]}]
        assert names(door.grants(holding=holding)) == ["s"]
        everything = [{"run": g["run"], "epoch": g["epoch"]} for g in first]
        assert door.grants(holding=everything) == []


def test_a_lease_that_is_granted_again_lives_a_whole_ttl_from_then(door):
    door.start()
    claim = new_id()
    door.grants(claim=claim)
    door.pass_time(9)
    [grant] = door.grants(claim=claim)
    worker = Worker(door, "r", "w", grant["epoch"])
    door.pass_time(9)  # the worker counts from the request that told it
    assert worker.renew()["held"]


def test_an_old_epoch_in_holding_is_told_the_new_one(door):
    door.start()
    worker = door.worker()
    good(worker.release())
    [grant] = door.grants()
    holding = [{"run": "r", "epoch": worker.epoch}]
    assert door.grants(holding=holding) == [grant | {"head_seq": door.head()}]


def test_an_expired_lease_is_not_granted_again_as_if_it_lived(door):
    door.start()
    door.worker()
    door.pass_time(10, sweep=False)
    assert door.grants() == []


def test_two_claimers_never_both_get_one_run(door):
    runs = [door.start(f"r{n}") for n in range(60)]
    takers = [lambda w=w: door.grants(f"w{w}", limit=20) for w in range(8)]
    taken = [name for grants in at_once(*takers) for name in names(grants)]
    assert sorted(taken) == sorted(runs)


def test_only_runs_of_the_workers_agents_are_granted(door):
    door.start("mine")
    door.start("theirs", agent="b")
    assert names(door.grants("w", limit=9)) == ["mine"]
    assert names(door.grants("v", limit=9, agents=["c"])) == []
    assert names(door.grants("u", limit=9, agents=["c", "b"])) == ["theirs"]


@pytest.mark.parametrize("reducer", ["merge", "none"])
def test_an_outsiders_run_without_agent_is_nobodys_work(door, reducer):
    door.outsider(reducer=reducer)
    assert door.grants(limit=9) == [] and door.status() == "waiting"


WAKES = {
    "a new run": lambda door: door.start("new"),
    "a message": lambda door: good(door.post("/runs/m/messages", {"content": "hi"}), 201),
    "an answer": lambda door: good(door.post("/runs/q/waits/w1/answer", {"answer": 1}), 201),
    "a signal": lambda door: good(door.post("/runs/s/signals/go"), 201),
    "an unpause": lambda door: good(door.post("/runs/p/unpause"), 201),
    "a settlement": lambda door: good(
        door.post("/runs/d/effects/e1/settle", {"outcome": "happened"}), 201
    ),
    "a deadline": lambda door: door.pass_time(61),
    "a retry that falls due": lambda door: door.pass_time(31),
    "a lease that ends": lambda door: good(
        door.send("DELETE", "/runs/l/lease", {"worker": "w", "epoch": 2})
    ),
}


@pytest.mark.parametrize("wake", WAKES)
def test_a_polling_claim_wakes_when_a_run_becomes_runnable(door, wake):
    waits = {"m": ("message", {}), "q": ("question", {}), "s": ("signal", {"name": "go"})}
    for run, (kind, fields) in waits.items():
        door.start(run)
        door.worker(run).ask(kind=kind, **fields)
    door.start("t")
    if wake == "a deadline":
        door.worker("t").ask(in_s=60)
    else:
        door.worker("t").ask()
    door.start("p")
    good(door.post("/runs/p/pause"), 201)
    door.start("d")
    worker = door.worker("d")
    worker.facts(event("effect_doubted", effect=worker.open_effect(), why="timeout"))
    door.start("f")
    worker = door.worker("f")
    worker.open_effect()
    retry_in_s = 30 if wake == "a retry that falls due" else 3_000
    worker.facts(
        event(
            "effect_failed", effect="e1", error={"type": "T", "message": ""}, retry_in_s=retry_in_s
        )
    )
    door.start("l")
    door.worker("l", ttl_s=1_000.0)
    assert door.grants("v", limit=9) == []
    thread, found = poll(door, "v")
    WAKES[wake](door)
    thread.join(BIG_S)
    expected = {"a new run": "new", "a message": "m", "an answer": "q", "a signal": "s"}
    expected |= {
        "an unpause": "p",
        "a settlement": "d",
        "a deadline": "t",
        "a lease that ends": "l",
    }
    assert names(found[0]) == [expected.get(wake, "f")]


def test_a_polling_claim_ends_when_the_store_stops(door):
    thread, found = poll(door, "v")
    door.store.stop()
    thread.join(BIG_S)
    assert found == [[]]


@pytest.mark.parametrize("version", [0, -1])
def test_a_worker_that_is_behind_claims_nothing(door, version):
    door.start()
    with nobody_is_changed(door):
        refused(door.claim(schema_version=version), 409, "schema_behind")


@pytest.mark.parametrize(
    "fields",
    [
        {"ttl_s": 0},
        {"ttl_s": 0.4},
        {"ttl_s": -1},
        {"ttl_s": 3601},
        {"ttl_s": 1e300},
        {"ttl_s": "10"},
        {"timeout_s": -1},
        {"timeout_s": 61},
        {"limit": -1},
        {"limit": 2**63},
        {"limit": 1.5},
        {"worker": ""},
        {"claim": ""},
        {"worker": "w" * 201},
        {"agents": None},
        {"agents": "a"},
        {"holding": [{"run": "r"}]},
        {"holding": [{"run": "r", "epoch": 1, "x": 1}]},
    ],
    ids=str,
)
def test_a_claim_of_a_wrong_shape_is_refused_and_grants_nothing(door, fields):
    door.start()
    with nobody_is_changed(door):
        refused(door.claim(**fields), 422, "invalid_body")


# --- the end of a lease


@pytest.mark.parametrize("on_doubt", ["ask", "reconcile", "retry"])
@pytest.mark.parametrize("how", ["expiry", "release", "restart and expiry"])
def test_every_end_of_a_lease_doubts_what_is_open(door, on_doubt, how):
    door.start()
    worker = door.worker()
    effect = worker.open_effect(on_doubt=on_doubt)
    if how == "release":
        good(worker.release())
    else:
        if how != "expiry":
            door.reopened()
        door.pass_time(10)
    doubt, end = door.events()[-2:]
    assert (doubt["type"], end["type"]) == ("effect_doubted", "lease_released")
    assert doubt["data"]["effect"] == effect
    assert doubt["data"].get("ask", False) is (on_doubt == "ask")
    assert end["data"]["why"] == ("released" if how == "release" else "expired")
    assert door.status() == ("in_doubt" if on_doubt == "ask" else "queued")
    assert door.effects()[effect]["status"] == "in_doubt"


def test_an_expired_run_is_claimable_and_the_next_grant_is_a_takeover(door):
    door.start()
    door.worker()
    door.pass_time(10)
    other = door.worker(name="other")
    grant = door.events()[-1]
    assert grant["data"]["takeover"] is True and other.epoch == grant["seq"]
    good(other.release())
    door.worker(name="third")
    assert door.events()[-1]["data"].get("takeover", False) is False


def test_a_lease_ends_by_itself_when_there_is_nothing_its_holder_could_do(door):
    door.start()
    worker = door.worker()
    worker.ask()
    shown = door.get("/runs/r").body
    assert shown["lease"] is None and shown["status"] == "waiting"
    assert worker.renew()["held"] is False
    assert "lease_released" not in door.types()
    door.pass_time(1_000)
    assert door.types()[-1] == "wait_opened", "there was no lease left to expire"


@pytest.mark.parametrize("word", ["pause", "cancel"])
def test_an_open_effect_keeps_its_lease_when_nothing_new_may_start(door, word):
    door.start()
    worker = door.worker()
    worker.open_effect()
    good(door.post(f"/runs/r/{word}"), 201)
    assert worker.renew()["held"] is True
    worker.facts(event("effect_succeeded", effect="e1", result=1))
    assert worker.renew()["held"] is (word == "cancel"), "a cancel leaves the end to its holder"


def test_the_holder_of_a_cancelled_run_that_dies_leaves_the_end_to_the_store(door):
    door.start()
    door.worker()
    good(door.post("/runs/r/cancel"), 201)
    assert door.status() == "running"
    door.pass_time(10)
    assert door.types()[-2:] == ["lease_released", "run_cancelled"]


def test_after_a_restart_every_lease_gets_one_fresh_ttl_and_no_more(door):
    door.start()
    worker = door.worker()
    door.pass_time(9)
    door.reopened()
    door.pass_time(9.5)
    assert worker.renew()["held"], "nobody could renew while the store was down"
    door.pass_time(10)
    assert door.types()[-1] == "lease_released"
    assert not worker.renew()["held"]


def test_a_renewal_tells_what_the_holder_must_know(door):
    door.start()
    worker = door.worker()
    seen = worker.renew()
    expected = {"run": "r", "epoch": 2, "held": True, "head_seq": 2, "status": "runnable"}
    assert seen == expected | {"cancel": False, "paused": False}
    effect = worker.open_effect()
    good(door.post("/runs/r/pause"), 201)
    assert worker.renew()["paused"] is True
    good(door.post("/runs/r/unpause"), 201)
    good(door.post("/runs/r/cancel"), 201)
    seen = worker.renew()
    assert seen["cancel"] and not seen["paused"] and seen["head_seq"] == door.head()
    worker.facts(event("effect_succeeded", effect=effect))
    worker.decide(event("run_cancelled"))
    seen = worker.renew()
    assert (seen["held"], seen["status"]) == (False, "cancelled")


def test_renewals_prolong_and_one_lost_lease_does_not_lose_the_others(door):
    for run in ("r", "s"):
        door.start(run)
    grants = door.grants(limit=2)
    good(Worker(door, "s", "w", grants[1]["epoch"]).release())
    leases = [{"run": g["run"], "epoch": g["epoch"]} for g in grants] + [
        {"run": "nope", "epoch": 1}
    ]
    for _ in range(5):
        door.pass_time(9)
        told = good(door.post("/leases", {"worker": "w", "leases": leases})).body["leases"]
        assert [lease["held"] for lease in told] == [True, False, False]
    assert told[2]["code"] == "run_not_found"


def test_a_lease_that_ran_out_cannot_be_renewed_even_before_the_sweep(door):
    door.start()
    worker = door.worker()
    door.pass_time(10, sweep=False)
    assert worker.renew()["held"] is False
    door.timers.sweep()
    assert door.types()[-1] == "lease_released"


@pytest.mark.parametrize("jump_s", [-3_600, 3_600])
def test_only_the_monotonic_clock_ends_a_lease(door, jump_s):
    """B30."""
    door.start()
    worker = door.worker()
    door.now_s += jump_s
    door.pass_time(9.9)
    assert worker.renew()["held"]
    door.pass_time(10)
    assert not worker.renew()["held"] and door.types()[-1] == "lease_released"


def test_a_wrong_offer_of_a_held_run_costs_a_look_and_no_lease(door):
    door.start()
    worker = door.worker()
    entry = door.store.entry("r")
    until, entry.lease_until = entry.lease_until, None
    summary, entry.summary = entry.summary, msgspec.structs.replace(entry.summary, runnable=True)
    door.store.board.update(entry)
    entry.lease_until, entry.summary = until, summary
    with nobody_is_changed(door):
        assert door.grants("v") == []
    assert worker.renew()["held"]


# --- fencing (B09)


def test_a_frozen_holder_of_the_same_name_can_do_nothing(door):
    door.start()
    old = door.worker()
    old.plan("book")
    start = old.intent("e1")
    door.pass_time(10)
    new = door.worker()
    assert new.epoch > old.epoch
    with nobody_is_changed(door):
        refused(old.append(note()), 409, "fenced")
        refused(old.append(event("run_resumed")), 409, "fenced")
        refused(old.append(decisions=(door.head(), [start])), 409, "fenced")
        assert old.renew()["held"] is False
        assert refused(old.release(), 409, "fenced").body["epoch"] == new.epoch
    assert new.renew()["held"] is True


@pytest.mark.parametrize("epoch", [0, 1, 3, -1, 2**63])
def test_a_release_with_another_epoch_is_fenced(door, epoch):
    door.start()
    worker = door.worker()
    with nobody_is_changed(door):
        refused(Worker(door, "r", "w", epoch).release(), 409, "fenced")
    assert worker.renew()["held"]


def test_a_release_under_another_name_is_fenced(door):
    door.start()
    worker = door.worker()
    with nobody_is_changed(door):
        refused(Worker(door, "r", "thief", worker.epoch).release(), 409, "fenced")
        assert Worker(door, "r", "thief", worker.epoch).renew()["held"] is False
    assert worker.renew()["held"]


def test_a_release_sent_twice_is_harmless(door):
    door.start()
    worker = door.worker()
    first = good(worker.release(why="draining")).body
    with nobody_is_changed(door):
        assert good(worker.release(why="draining")).body == first


def test_a_lease_renewed_at_its_last_moment_is_not_lost_to_a_sweep(door):
    door.start()
    worker = door.worker(ttl_s=2.0)
    door.pass_time(1.9)
    assert worker.renew()["held"]
    door.pass_time(1.9)
    assert worker.renew()["held"] and "lease_released" not in door.types()


def test_a_late_outcome_replaces_the_doubt_of_its_own_epoch_only(door):
    door.start()
    worker = door.worker()
    worker.open_effect(on_doubt="reconcile")
    door.pass_time(10)
    outcome = event("effect_succeeded", effect="e1", result="late")
    worker.facts(outcome)
    assert door.effects()["e1"]["status"] == "succeeded"


def test_a_late_outcome_of_a_superseded_epoch_is_refused(door):
    door.start()
    worker = door.worker()
    worker.open_effect(on_doubt="reconcile")
    door.pass_time(10)
    door.worker(name="other")
    with nobody_is_changed(door):
        refused(worker.append(event("effect_succeeded", effect="e1")), 409, "fenced")


# --- crash loops


def test_ten_grants_without_progress_pause_the_run(door):
    door.start()
    for n in range(10):
        worker = door.worker(name=f"w{n}")
        if n:
            worker.facts(event("run_resumed"))
        door.pass_time(10)
    assert door.grants() == []
    assert door.events()[-1]["type"] == "run_paused"
    assert door.events()[-1]["data"]["reason"].startswith("crash_loop")
    good(door.post("/runs/r/unpause"), 201)
    door.worker()


def test_progress_in_between_is_no_crash_loop(door):
    door.start()
    for n in range(25):
        worker = door.worker(name=f"w{n}")
        worker.facts(event("vars_changed", change={"merge": {"n": n}}))
        door.pass_time(10)
    assert "run_paused" not in door.types()


# --- one bad run is not everybody's


def test_a_run_that_cannot_be_read_does_not_stop_the_claims_of_others(door):
    door.start("broken")
    door.grants()
    door.start("fine")
    entry = door.store.entry("broken")
    entry.loaded, entry.damage = None, CorruptLog("flipped bits")
    assert names(door.grants(limit=9)) == ["fine"]
    assert [wait["run"] for wait in good(door.get("/waits")).body["waits"]] == []
    good(door.get("/effects?status=open"))


def test_the_timers_outlive_a_run_that_raises_anything(door, monkeypatch):
    for run in ("r", "s"):
        door.start(run)
    for run in ("r", "s"):
        door.worker(run, name=run).ask(in_s=5)
    loaded = door.store.loaded

    def broken(entry):
        if entry.run == "r":
            raise ValueError("a defect")
        return loaded(entry)

    monkeypatch.setattr(door.store, "loaded", broken)
    door.pass_time(5)
    assert door.types("s")[-1] == "wait_resolved"


def failing_once(door, monkeypatch, error):
    real, errors = door.store.engine.append, [error]

    def append(*arguments):
        if errors:
            raise errors.pop()
        return real(*arguments)

    monkeypatch.setattr(door.store.engine, "append", append)


def test_a_claim_that_fails_leaves_every_run_to_be_claimed(door, monkeypatch):
    """What was taken off the board and not granted comes back, not only the run that failed."""
    runs = [door.start(f"r{n}") for n in range(5)]
    failing_once(door, monkeypatch, disk.DiskFull("full"))
    refused(door.claim(limit=5), 507, "disk_full")
    assert sorted(names(door.grants(limit=5))) == runs


def test_a_claim_that_fails_half_way_is_answered_as_a_whole_by_the_next(door, monkeypatch):
    runs = [door.start(f"r{n}") for n in range(5)]
    real, left = door.store.engine.append, [2]

    def append(*arguments):
        left[0] -= 1
        if left[0] == 0:
            raise disk.DiskFull("full")
        return real(*arguments)

    monkeypatch.setattr(door.store.engine, "append", append)
    refused(door.claim(limit=5), 507, "disk_full")
    assert sorted(names(door.grants(limit=5))) == runs


def test_a_cancelled_run_in_a_crash_loop_is_asked_of_a_person_and_then_ends(door):
    door.start()
    door.worker().open_effect(on_doubt="reconcile")
    good(door.post("/runs/r/cancel"), 201)
    for n in range(15):
        door.pass_time(10)
        if not door.grants(f"w{n}"):
            break
    assert door.status() == "in_doubt"
    assert [one["effect"] for one in good(door.get("/effects")).body["effects"]] == ["e1"]
    good(door.post("/runs/r/effects/e1/settle", {"outcome": "did_not_happen"}), 201)
    assert door.status() == "cancelled"


def test_renewals_and_claims_go_on_while_writers_queue_for_one_run(door):
    """A worker must not lose all its leases to one busy run."""
    door.start("busy"), door.start("quiet")
    held = [{"run": g["run"], "epoch": g["epoch"]} for g in door.grants(limit=2)]
    door.store.entry("busy").writers.waiting = 8
    door.pass_time(5)
    [*leases] = good(door.post("/leases", {"worker": "w", "leases": held})).body["leases"]
    assert all(lease["held"] for lease in leases)
    door.pass_time(6)
    assert len(door.grants(limit=0)) == 2, "both are live, and were not listed"
    door.store.entry("busy").writers.waiting = 0


def test_a_run_that_cannot_be_read_now_costs_no_other_lease(door, monkeypatch):
    door.start("broken"), door.start("fine")
    held = [{"run": g["run"], "epoch": g["epoch"]} for g in door.grants(limit=2)]
    door.store.entry("broken").loaded = None
    real = door.store.engine.read

    def read(run, *arguments, **options):
        if run == "broken":
            raise disk.DataDirUnusable(door.path, "too many open files")
        return real(run, *arguments, **options)

    monkeypatch.setattr(door.store.engine, "read", read)
    door.pass_time(5)
    held.sort(key=lambda lease: lease["run"])
    refused(door.post("/leases", {"worker": "w", "leases": held}), 503, "overloaded")
    door.pass_time(6)
    assert names(door.grants(limit=0)) == ["fine"]


def test_an_intent_needs_a_lease_on_an_outsiders_run_too(door):
    """Only the end of a lease doubts a call that never came back (I6)."""
    door.outsider()
    plan = event("plan_made", calls=[{"effect": "e1", "name": "book", "args": {}}])
    good(door.append("r", decisions=(1, [plan])), 201)
    intent = intent_of(door, "r", "e1", door.effects()["e1"] | {"attempt": 0})
    refused(door.append("r", decisions=(2, [intent])), 409, "no_lease")
    good(door.post("/runs/r/cancel"), 201)
    assert door.status() == "cancelled"


def test_looks_at_leases_do_not_pile_up(door):
    door.start()
    for n in range(50):
        worker = door.worker()
        worker.facts(event("vars_changed", change={"merge": {"n": n}}))
        worker.release()
    worker = door.worker()
    for _ in range(10):
        door.pass_time(4)
        assert worker.renew()["held"]
    assert len(door.store.board._leases) <= 2
    door.pass_time(10)
    assert door.types()[-1] == "lease_released", "and the one that counts was looked at"
