"""`GET /metrics` of the agent service: what its worker does and has done, as Prometheus reads it.

Always: counted by the worker, put into words when somebody asks. The values of a label are words of
this code: no run, no agent and no tool is named.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric

from .worker import Worker

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "stillrun_agent"

COUNTED = (
    ("claims", "Claims that the store has answered.", ()),
    ("grants", "Runs granted by them.", ()),
    ("steps", "Appends with decisions, all taken.", ()),
    ("calls", "Calls and questions of hooks that ended, by how.", ("kind", "result")),
)


class Metrics:
    """The figures of one worker and of its process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def text(self) -> bytes:
        """All figures as they are now."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """For the registry: called at each scrape."""
        worker = self._worker
        counts = worker.figures.read()
        for name, says, labels in COUNTED:
            family = CounterMetricFamily(f"{PREFIX}_{name}", says, labels=labels)
            if not labels:
                family.add_metric([], counts.get((name,), 0))
            for key, count in counts.items():
                if labels and key[0] == name:
                    family.add_metric(list(key[1:]), count)
            yield family
        yield _gauge("runs_in_work", "Runs worked on now.", worker.runs_in_work())
        yield _gauge("calls_in_flight", "Calls that have not ended.", worker.calls_in_flight())
        yield _gauge("draining", "1 from SIGTERM on.", int(worker.is_draining()))
        yield _gauge("ready", "1 while the store takes our claims.", int(worker.is_ready()))


def _gauge(name: str, says: str, value: int) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", says, value)
