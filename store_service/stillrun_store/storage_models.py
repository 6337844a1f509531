"""The four storage models as one policy: when a snapshot is taken, and which are kept (DESIGN 6).

Always: pure; a model changes costs, never an answer (I3). `every` is k: events between snapshots.

| model    | when                                                     | keep                    |
| snapshot | every append, before the answer                          | all                     |
| log      | never                                                    | none                    |
| hybrid   | every k events                                           | as much as the log, and |
| adaptive | after k events and as many bytes as the last snapshot is | the newest two          |

Whole states every k events are written again and again: quadratic in the length of the run.
Adaptive keeps all that is written, the log included, under 3x the log, for states no larger than
their log L. Snapshot n is taken after a tail of at least S(n-1) bytes, so all but the last one
together weigh no more than the tails between them, which are less than L; the last is at most L.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import get_args

from stillrun.events import Storage, StorageModel

__all__ = ["DEFAULT_MODEL", "MAX_EVERY", "MODELS", "Policy", "policy_of"]

MODELS: tuple[StorageModel, ...] = get_args(StorageModel)
DEFAULT_MODEL: StorageModel = "adaptive"
MAX_EVERY = 1_000_000  # events between snapshots: a larger number is meant to be `log`
KEEP = 2  # the newest two stay whatever they weigh: one may be damaged


@dataclass(frozen=True, slots=True)
class Policy:
    """A model and its k."""

    model: StorageModel
    every: int

    @property
    def counts_events(self) -> bool:
        """Whether k means anything to it."""
        return self.model in ("hybrid", "adaptive")

    @property
    def before_answer(self) -> bool:
        """Whether an append is answered after its snapshot."""
        return self.model == "snapshot"

    @property
    def keeps_none(self) -> bool:
        return self.model == "log"

    @property
    def weighs(self) -> bool:
        """Whether the last snapshot's size decides when the next one is due."""
        return self.model == "adaptive"

    def due(self, *, tail_events: int, tail_bytes: int, snapshot_bytes: int) -> bool:
        """Whether to take one, given what came after the last one and how large that one is.

        The last one's size stands for the state's own: it is known without packing the state at
        each append, and it is the very number that the bound above needs. A state that shrank
        since makes the tail longer than it had to be, by no more than that snapshot weighs.
        """
        match self.model:
            case "snapshot":
                return tail_events > 0
            case "log":
                return False
            case "hybrid":
                return tail_events >= self.every
            case "adaptive":
                return tail_events >= self.every and tail_bytes >= snapshot_bytes

    def surplus(self, sizes: Sequence[tuple[int, int]], log_bytes: int) -> list[int]:
        """Seqs of the snapshots to drop, given (seq, bytes) oldest first.

        Hybrid and adaptive: while snapshots outweigh the log, the one whose removal leaves the
        smallest gap goes; the newest KEEP stay.
        """
        if self.model == "snapshot":
            return []
        if self.model == "log":
            return [seq for seq, _ in sizes]
        over = sum(size for _, size in sizes) - log_bytes
        if over <= 0:
            return []
        size_of, dropped = dict(sizes), []
        seqs = [0, *size_of]
        before, after = dict(pairwise(seqs[::-1])), dict(pairwise(seqs))
        # What is left between its neighbours without each; a heap, for there may be thousands.
        gaps = [(after[seq] - before[seq], seq) for seq in seqs[1:-KEEP]]
        heapify(gaps)
        newest_kept = set(seqs[-KEEP:])
        while gaps and over > 0:
            gap, seq = heappop(gaps)
            if seq not in before or gap != after[seq] - before[seq]:
                continue  # a neighbour went since: its new gap is in the heap too
            over -= size_of[seq]
            dropped.append(seq)
            left, right = before.pop(seq), after.pop(seq)
            after[left], before[right] = right, left
            for beside in (left, right):
                if beside and beside not in newest_kept:
                    heappush(gaps, (after[beside] - before[beside], beside))
        return dropped


def policy_of(storage: Storage, default: Policy) -> Policy:
    """A run's policy: what the run has chosen, and the store's choice for the rest."""
    return Policy(storage.model or default.model, storage.every or default.every)
