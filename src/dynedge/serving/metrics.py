"""What Prometheus reads of a service."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from dynedge.serving.engine import Engine

BUCKETS = 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0


class Metrics:
    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_OfEngine(engine))
        self._seconds = Histogram(
            "dynedge_request_seconds", "Time to an answer", ("path",), buckets=BUCKETS, registry=self._registry
        )
        self._requests = Counter("dynedge_requests", "Requests", ("path", "status"), registry=self._registry)

    def tell(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _OfEngine(Collector):
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        engine, live = self.engine, self.engine.live
        counters = {
            "events_accepted": ("Events accepted since the service started", engine.accepted),
            "events_duplicate": ("Events whose id was known", engine.duplicates),
            "events_late": ("Accepted events older than their entity's last", engine.late),
            "user_states_moved": ("States of users moved", engine.traces.moved[0]),
            "item_states_moved": ("States of items moved", engine.traces.moved[1]),
        }
        gauges = {
            "journal_position": ("Events in the journal", engine.journal.end),
            "snapshot_position": ("Journal position of the newest snapshot", engine.snapshot_at),
            "events_waiting": ("Events not yet durable", engine.waiting),
            "users": ("Users known", len(live.users)),
            "items": ("Items known", len(live.items)),
            "snapshot_failing": ("1 where the last snapshot could not be written", int(bool(engine.snapshot_failed))),
        }
        for name, (told, value) in counters.items():
            yield CounterMetricFamily(f"dynedge_{name}", told, value)
        for name, (told, value) in gauges.items():
            yield GaugeMetricFamily(f"dynedge_{name}", told, value)
