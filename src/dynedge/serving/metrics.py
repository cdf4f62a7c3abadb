"""Prometheus metrics of a service."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from dynedge.serving.engine import Engine

BUCKETS = 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0


class Metrics:
    """Request counts and durations, and the engine's counters."""

    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(engine))
        self._durations = Histogram(
            "dynedge_request_duration_seconds",
            "Duration of requests",
            ("path",),
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._requests = Counter("dynedge_requests", "Requests", ("path", "status"), registry=self._registry)

    def record(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._durations.labels(path).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        engine, session = self.engine, self.engine.session
        end, applied = engine.journal.count, engine.journal.count - engine.lag
        counters = {
            "events_accepted": ("Events accepted since the service started", engine.accepted),
            "events_duplicate": ("Events whose event id was already in the journal", engine.duplicates),
            "events_applied": ("Events applied since the service started, of all replicas", engine.applied),
            "events_dead_lettered": ("Entries of the journal that could not be applied", engine.dead_lettered),
            "events_not_applied": ("Events left out because states would become infinite", session.not_applied),
            "events_late": ("Applied events older than the last event of their user or item", engine.late),
            "candidates_accepted": (
                "Learned parameters taken into use",
                engine.candidates_accepted,
            ),
            "candidates_dropped": ("Learned parameters dropped as worse", engine.candidates_dropped),
            "user_state_updates": ("Updates of user states", engine.drift.updates[0]),
            "item_state_updates": ("Updates of item states", engine.drift.updates[1]),
        }
        gauges = {
            "journal_position": ("Events in the journal", end),
            "applied_position": ("Events of the journal up to the position of the state", applied),
            "snapshot_position": ("Events of the journal up to the newest snapshot", applied - engine.snapshot_lag),
            "lag_events": ("Events in the journal that are not applied yet", end - applied),
            "journal_failed": ("1 if the journal cannot be reached", int(bool(engine.journal_error))),
            "events_queued": ("Events not yet durable", engine.queued),
            "users": ("Number of users", len(session.users)),
            "items": ("Number of items", len(session.items)),
            "snapshot_failed": ("1 if the last snapshot could not be written", int(bool(engine.snapshot_error))),
        }
        for name, (help_text, value) in counters.items():
            yield CounterMetricFamily(f"dynedge_{name}", help_text, value)
        for name, (help_text, value) in gauges.items():
            yield GaugeMetricFamily(f"dynedge_{name}", help_text, value)
