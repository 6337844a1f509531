"""`GET /metrics`: what the store did and how it is, as Prometheus reads it.

Always: a request pays for two looks at a clock and one note; all else is counted when somebody
asks. A label's values are routes, methods, codes and words of this code, never what a client sent.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric

from .listing import RUN_STATUSES, shown_status
from .space import LEVELS
from .store import Store
from .tally import Sums, Tally

__all__ = ["CONTENT_TYPE", "ROUTE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_BOUNDS_S = (0.001, 0.005, 0.025, 0.1, 1.0, 10.0)
PREFIX = "stillrun_store"

ROUTE = "stillrun.route"  # in a request's environ: method and template, from whoever matched it
UNMATCHED = ("-", "unmatched")

Wsgi = Callable[..., Iterable[bytes]]


class Metrics:
    """Counts the requests of one application over one store, and shows both as text."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._requests: Tally[tuple[str, str, str]] = Tally(REQUEST_BOUNDS_S)
        self._refusals: Tally[str] = Tally()
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def text(self) -> bytes:
        """All figures as they are now."""
        return generate_latest(self._registry)

    def counted(self, app: Wsgi) -> Wsgi:
        """The application, each request noted when its answer begins: a stream's, at its start."""
        note, clock = self._requests.note, time.perf_counter

        def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            status = "500"

            def start(line: str, *rest: Any) -> Any:
                nonlocal status
                status = line
                return start_response(line, *rest)

            began = clock()
            try:
                return app(environ, start)
            finally:
                note((*environ.get(ROUTE, UNMATCHED), status[0] + "xx"), clock() - began)

        return answer

    def refused(self, code: str) -> None:
        """A problem of this code was answered."""
        self._refusals.note(code)

    def collect(self) -> Iterator[Metric]:
        """For the registry: called at each scrape."""
        yield from self._door()
        yield from self._runs()
        yield from self._disk()

    def _door(self) -> Iterator[Metric]:
        requests = HistogramMetricFamily(
            f"{PREFIX}_request_seconds",
            "Until an answer began: long polls wait in it, streams go on after it.",
            labels=["method", "route", "status"],
        )
        for key, sums in self._requests.read().items():
            requests.add_metric(list(key), *_histogram(REQUEST_BOUNDS_S, sums))
        yield requests
        refusals = CounterMetricFamily(
            f"{PREFIX}_refusals",
            "Problems answered; GET /problems/{code} explains.",
            None,
            ["code"],
        )
        for code, sums in self._refusals.read().items():
            refusals.add_metric([code], sums.count)
        yield refusals

    def _runs(self) -> Iterator[Metric]:
        store, statuses = self._store, Counter[str]()
        damaged = leases = waits = 0
        now = store.monotonic()
        for entry in store.entries():
            summary, until = entry.summary, entry.lease_until
            if entry.damage is not None:
                damaged += 1
            else:
                leased = until is not None and until > now
                leases += leased
                waits += summary.open_waits
                statuses[shown_status(summary.status, leased)] += 1
        runs = GaugeMetricFamily(f"{PREFIX}_runs", "Undamaged runs by status.", labels=["status"])
        for word in RUN_STATUSES:
            runs.add_metric([word], statuses[word])
        yield runs
        yield _gauge(
            "damaged_runs", "Runs refused from some seq on; GET /readyz names them.", damaged
        )
        yield _gauge("leases_live", "Runs that a worker works on.", leases)
        yield _gauge("waits_open", "Questions that nobody has answered.", waits)

    def _disk(self) -> Iterator[Metric]:
        store, engine = self._store, self._store.engine
        bounds = store.commits.bounds
        empty = Sums([0] * (len(bounds) + 1), 0.0, [0, 0])
        sums = store.commits.read().get("commit", empty)
        events, size = sums.amounts
        yield HistogramMetricFamily(
            f"{PREFIX}_commit_seconds",
            "Writing and syncing one frame.",
            *_histogram(bounds, sums),
        )
        yield _counter("appends", "Frames acknowledged.", sums.count)
        yield _counter("appended_events", "Events in them.", events)
        yield _counter("appended_bytes", "Bytes of these events, without frames.", size)
        written, failed = store.snapshots.written, store.snapshots.failed
        yield _counter("snapshots_written", "Snapshots that are on the disk.", written)
        yield _counter("snapshots_failed", "Snapshots that could not be written.", failed)
        yield _counter(
            "snapshots_ignored", "Snapshots that did not verify.", engine.snapshot_fault_count
        )
        torn = len(engine.recovery.torn_tails)
        yield _gauge("torn_tails_cut", "Unfinished writes found by the last start.", torn)
        yield from self._volume()
        yield from self._scrub()
        ready = store.ready and not store.stopping.is_set()
        yield _gauge("ready", "1 when recovery is done.", int(ready))

    def _volume(self) -> Iterator[Metric]:
        space = self._store.space
        space.look()
        volume = space.volume
        yield _gauge("free_bytes", "Bytes left on the volume.", volume.free_bytes)
        if volume.free_files is not None:  # some file systems have no such limit
            yield _gauge("free_inodes", "Files the volume can still take.", volume.free_files)
        level = LEVELS.index(space.level)
        yield _gauge("disk_level", "0: ok, 1: space or inodes are low, 2: full.", level)
        yield _counter("appends_refused", "Appends the volume did not take.", space.refused_total)

    def _scrub(self) -> Iterator[Metric]:
        scrub = self._store.findings
        yield _counter("scrub_passes", "Times that all files were read again.", scrub.passes)
        yield _counter("scrub_read_bytes", "Bytes read again.", scrub.bytes_read)
        yield _counter("scrub_folded_runs", "Runs folded again.", scrub.folded_runs)
        yield _counter("scrub_failures", "Times that the reading process failed.", scrub.failures)
        yield _counter("scrub_found", "Findings of all passes.", scrub.count)
        kinds = Counter(fault.kind for fault in scrub.all())
        findings = GaugeMetricFamily(
            f"{PREFIX}_scrub_findings", "What is wrong now, as far as is known.", labels=["kind"]
        )
        for kind in ("log", "snapshot", "fold", "blob"):
            findings.add_metric([kind], kinds[kind])
        yield findings


def _histogram(bounds: tuple[float, ...], sums: Sums) -> tuple[list[tuple[str, float]], float]:
    """Cumulative buckets and the sum, as the text wants them."""
    names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    below = 0
    buckets: list[tuple[str, float]] = []
    for name, count in zip(names, sums.buckets, strict=True):
        below += count
        buckets.append((name, below))
    return buckets, sums.total


def _gauge(name: str, says: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", says, value)


def _counter(name: str, says: str, value: float) -> Metric:
    return CounterMetricFamily(f"{PREFIX}_{name}", says, value)
