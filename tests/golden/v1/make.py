"""Wrote the .msgpack and .json files beside it, each once: `python tests/golden/v1/make.py`.

Always: bytes that were written are never made again (I9); this script is kept to show how they
came about, and it writes only files that are missing. What a version gains before its release
comes in a file of its own. Each type is there twice: with every field, and with no more than it
needs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stillrun import codec
from stillrun import events as ev
from stillrun.events import Event

HERE = Path(__file__).parent
PROBLEM = ev.Problem(type="Boom", message="it broke: é, 😀")
ANY = {"n": [1, 1.0, -0.0, True, None, 2**64 - 1, -(2**63)], "é": {"": "\0"}, "raw": b"\xff\x00"}
BLOB = ev.BlobRef(sha256="ab" * 32, size_bytes=300_000, media_type="text/plain", preview="Dear")
VARS = ev.VarsChange(merge={"a": None, "b": {"c": 1}}, append={"list": [1, "x"]})
CALL = ev.PlannedCall(effect="e2", name="book", args=ANY)
DUE = "2025-12-01T10:00:00.000Z"

EXAMPLES = [
    ev.RunCreated(
        run="trip-1", log_id="0f3a", reducer="merge", agent="concierge", agent_version=2,
        input=ANY, seed=2**63, labels={"team": "é"}, storage=ev.Storage(model="hybrid", every=10),
        limits=ev.Limits(steps=40),
    ),
    ev.RunCreated(run="trip-1", log_id="0f3a", reducer="none"),
    ev.RunForked(
        run="trip-2", log_id="77aa", parent_run="trip-1", parent_log_id="0f3a", parent_seq=17,
        effects="live", by="ana", reason="what if",
    ),
    ev.RunForked(
        run="trip-2", log_id="77aa", parent_run="trip-1", parent_log_id="0f3a", parent_seq=1
    ),
    ev.LeaseGranted(worker="agent-1", claim="c1", ttl_s=10.5, takeover=True),
    ev.LeaseGranted(worker="agent-1", claim="c1", ttl_s=10.0),
    ev.LeaseReleased(worker="agent-1", why="draining"),
    ev.RunResumed(snapshot_seq=50, replayed_events=7, premises=[ANY], doubts=["e1"]),
    ev.RunResumed(),
    ev.PlanMade(calls=[CALL, ev.PlannedCall(effect="e3", name="fare", args=None)]),
    ev.PlanMade(calls=[]),
    ev.MessageAdded(message="m1", content=ANY, role="user", mode="queue", by="ana"),
    ev.MessageAdded(message="m1", content="hello"),
    ev.EffectIntended(
        effect="e2", kind="tool", name="book", args=ANY, args_digest="cd" * 16,
        key="trip-1.0f3a.2.cdcdcdcd", on_doubt="reconcile", attempt=2, writes=True,
        rests_on={"p1": 219},
    ),
    ev.EffectIntended(
        effect="e1", kind="model", name="offline", args=[], args_digest="ef" * 16,
        key="trip-1.0f3a.1.efefefef", on_doubt="retry",
    ),
    ev.EffectSucceeded(
        effect="e2", result=ANY, blob=BLOB, usage=ev.Usage(input_tokens=7, output_tokens=9),
        vars=VARS,
    ),
    ev.EffectSucceeded(effect="e1"),
    ev.EffectFailed(effect="e2", error=PROBLEM, retry_in_s=1.5),
    ev.EffectFailed(effect="e2", error=PROBLEM),
    ev.EffectDoubted(effect="e2", why="unknown", ask=True, retry_in_s=60.0, error=PROBLEM),
    ev.EffectDoubted(effect="e2", why="crash"),
    ev.EffectSettled(
        effect="e2", outcome="happened", result=ANY, blob=BLOB, evidence="ticket 9", by="ana"
    ),
    ev.EffectSettled(effect="e2", outcome="did_not_happen"),
    ev.PremiseRecorded(
        premise="p1", tool="fare", args=ANY, value=219, observed_at=DUE, ttl_s=600.0
    ),
    ev.PremiseChecked(premise="p1", verdict="drifted", observed_at=DUE, value=240),
    ev.PremiseChecked(premise="p1", verdict="gone", observed_at=DUE),
    ev.PlanInvalidated(premises=["p1"], effects=["e2"], waits=["w1"]),
    ev.PlanInvalidated(premises=[]),
    ev.WaitOpened(
        wait="w1", kind="approval", subject="e2", prompt="Book?", due=DUE, in_s=3.5,
        default="reject", edit=["price"], name="go",
    ),
    ev.WaitOpened(wait="w2", kind="timer"),
    ev.WaitResolved(wait="w1", reason="answered", answer="edit", args={"price": 1.0}, by="ana"),
    ev.WaitResolved(wait="w1", reason="timed_out"),
    ev.SignalReceived(name="go", payload=ANY, by="ana"),
    ev.SignalReceived(name="go"),
    ev.VarsChanged(change=VARS),
    ev.VarsChanged(change=ev.VarsChange()),
    ev.VarsMigrated(from_version=1, to_version=2, patch={"a": None, "b": 1}),
    ev.StatePatched(
        patch=[
            ev.PatchStep(op="add", path="/vars/a~1b", value=ANY),
            ev.PatchStep(op="remove", path="/input"),
        ],
        by="ana", reason="typo",
    ),
    ev.StatePatched(patch=[]),
    ev.MessageReplaced(message="m1", content=ANY, by="ana"),
    ev.MessageReplaced(message="m1", content=None),
    ev.TagSet(name="good", at_seq=17),
    ev.StorageChanged(storage=ev.Storage(model="hybrid", every=5)),
    ev.StorageChanged(storage=ev.Storage(model="hybrid")),
    ev.RunDeletedEvent(by="ana", reason="asked for"),
    ev.RunDeletedEvent(),
    ev.CancelRequested(by="ana", reason="changed my mind"),
    ev.CancelRequested(),
    ev.RunPaused(by="ana", reason="lunch"),
    ev.RunPaused(),
    ev.RunUnpaused(by="ana", reason="back"),
    ev.RunUnpaused(),
    ev.RunSucceeded(output=ANY),
    ev.RunSucceeded(),
    ev.RunFailed(error=PROBLEM),
    ev.RunCancelled(reason="changed my mind"),
    ev.RunCancelled(),
    ("lg.checkpoint", ANY),
    ("lg.checkpoint", None),
]  # fmt: skip


COMPACTED = [
    ev.MessagesCompacted(
        at=1, count=3, first="m2", last="m9.e4",
        messages=[
            ev.KeptMessage(id="m2", kept=True),
            ev.KeptMessage(id="m7", content=ANY),
            ev.KeptMessage(role="user", content="in short: é"),
        ],
    ),
    ev.MessagesCompacted(at=0, count=1, first="m1", last="m1", messages=[]),
]  # fmt: skip

SIMULATED = [
    ev.EffectIntended(
        effect="e2", kind="tool", name="book", args=ANY, args_digest="cd" * 16,
        key="trip-1.0f3a.2.cdcdcdcd", on_doubt="retry", mode="simulated",
    ),
    ev.WaitOpened(wait="w1", kind="approval", subject="e2", prompt="Would do?", simulates=True),
]  # fmt: skip

SETTLED = [
    ev.EffectSettled(
        effect="e1", outcome="happened", result={"content": "hi", "calls": []}, by="agent-1",
        usage=ev.Usage(input_tokens=7, output_tokens=9, model="m", cost=0.5),
    ),
]  # fmt: skip
MODELS = [
    ev.StorageChanged(storage=ev.Storage(model="snapshot")),
    ev.StorageChanged(storage=ev.Storage(model="log")),
    ev.StorageChanged(storage=ev.Storage(model="adaptive", every=7)),
    ev.StorageChanged(storage=ev.Storage()),
    ev.RunCreated(run="trip-1", log_id="0f3a", reducer="none", storage=ev.Storage(every=9)),
]

FILES = {
    "events": EXAMPLES,
    "compacted": COMPACTED,
    "simulated": SIMULATED,
    "settled": SETTLED,
    "models": MODELS,
}


def main() -> None:
    for name, examples in FILES.items():
        if not (HERE / f"{name}.msgpack").exists():
            write(name, examples)


def write(name: str, examples: list[Any]) -> None:
    events = []
    for seq, example in enumerate(examples, 1):
        event_type, data = example if isinstance(example, tuple) else (example.TYPE, example)
        event = Event(
            seq=seq,
            id=f"{seq:02x}" * 16,
            type=event_type,
            schema_version=1,
            at_ms=1_764_410_400_000 + seq * 1001,
            epoch=seq % 3 * 2**33,
            data=data,
        )
        events.append(event)
    with (HERE / f"{name}.msgpack").open("xb") as file:
        file.write(codec.encode_msgpack([codec.encode_event(event) for event in events]))
    with (HERE / f"{name}.json").open("x") as file:  # bytes as JSON shows them
        shown = [json.loads(codec.encode_json(codec.event_to_wire(event))) for event in events]
        json.dump(shown, file, indent=1, ensure_ascii=False)
        file.write("\n")


if __name__ == "__main__":
    main()
