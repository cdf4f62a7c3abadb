"""A log played into a service as if its events came now: what the run does not know of it, so many a second."""

from __future__ import annotations

import threading

import numpy as np

from dynedge.data.log import EventLog
from dynedge.errors import DataError
from dynedge.inference.event_input import Event
from dynedge.runs.coverage import Coverage
from dynedge.runs.folder import COVERAGE
from dynedge.serving.engine import BusyError, Engine
from dynedge.serving.journal import DiskFullError
from dynedge.utils.tensor_io import load_tensors

PAUSE = 0.1  # seconds between two requests


class Replay(threading.Thread):
    """An event is known by its place in the log: what was played before has no second effect."""

    def __init__(self, engine: Engine, log: EventLog, rate: float) -> None:
        super().__init__(name="dynedge-replay", daemon=True)
        live = engine.live
        if log.features.shape[1] != live.ids.features.shape[1]:
            raise DataError(f"{log.path} has other features than the log that {live.folder} was trained on.")
        self.engine, self.log, self.rate = engine, log, rate
        coverage = Coverage.from_tensors(load_tensors(live.folder / COVERAGE))
        own = live.ids.metadata.get("trained_on", {}).get("fingerprint") == log.fingerprint
        self.start_at = coverage.events if own else int(np.searchsorted(log.time, coverage.last_time, "right"))
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        at, together = self.start_at, min(1000, max(1, round(self.rate * PAUSE)))
        while at < len(self.log) and not self._stopping.wait(together / self.rate):
            stop = min(at + together, len(self.log))
            try:
                self.engine.submit([self._event(k) for k in range(at, stop)]).result()
                at = stop
            except (BusyError, DiskFullError):
                continue

    def _event(self, k: int) -> Event:
        log = self.log
        own = str(log.user_ids[int(log.user[k])]), str(log.item_ids[int(log.item[k])])
        features = tuple(np.asarray(log.features[k]).tolist())
        return Event(*own, float(log.time[k]), features, f"{log.fingerprint[:16]} {k}")
