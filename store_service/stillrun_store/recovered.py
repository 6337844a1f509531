"""The runs of a data directory as a start finds them.

Always: each run has its entry, also one that cannot be read: it is served as damaged (I11); a run
that the index knows of is not read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from stillrun import codec
from stillrun.errors import CorruptLog, Damaged, StillrunError

from .border import damage_of
from .history import History
from .runs import SUMMARY_VERSION, Entry, Summary, summarize
from .storage import Engine

__all__ = ["recovered"]

_log = logging.getLogger(__name__)


def recovered(engine: Engine, history: History, now_ms: Callable[[], int]) -> Iterator[Entry]:
    """An entry for each run, without a lease. `now_ms`: wall milliseconds."""
    for info in engine.runs():
        sizes = engine.sizes(info.run)
        entry = Entry(
            run=info.run,
            log_id=info.log_id,
            head_seq=info.head_seq,
            summary=_UNREADABLE,
            damage=None if info.damage is None else damage_of(info.damage),
            log_bytes_at_start=sizes.log_bytes,
            bytes_at_start=sizes.log_bytes + sizes.snapshot_bytes,
        )
        known = _known_summary(info.summary)
        if known is not None:
            entry.summary = known
        elif _sum_up(entry, history, now_ms):
            engine.summarize(entry.run, entry.head_seq, codec.encode_msgpack(entry.summary))
        yield entry


def _sum_up(entry: Entry, history: History, now_ms: Callable[[], int]) -> bool:
    """Fold a run of which the index knows too little; False if it cannot be: it is damaged."""
    try:
        control = history.fold(entry, entry.head_seq).state.control
        entry.summary = summarize(control, now_ms())
        return True
    except Damaged as error:
        entry.damage = entry.damage or error
    except Exception as error:
        # A defect met in one run must not keep all others from being served.
        _log.exception("run %s cannot be folded", entry.run)
        detail = f"its state cannot be built: {error!r:.200}"
        entry.damage = entry.damage or CorruptLog(detail, run=entry.run)
    return False


_decode_summary = codec.decode_typed(Summary)


def _known_summary(packed: bytes | None) -> Summary | None:
    """What the index knows of a run; None if nothing, or nothing that this code has written."""
    try:
        summary = _decode_summary(packed or b"")
    except StillrunError:
        return None
    return summary if summary.version == SUMMARY_VERSION else None


_UNREADABLE = Summary(
    version=SUMMARY_VERSION,
    reducer="none",
    agent=None,
    agent_version=0,
    labels={},
    created_at_ms=0,
    at_ms=0,
    status="waiting",
    runnable=False,
)
