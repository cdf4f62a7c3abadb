"""Event source that replays a log: submits the events that the run was not trained on, at a constant rate."""

from __future__ import annotations

import threading

import numpy as np

from dynedge.data.log import EventLog
from dynedge.errors import DataError
from dynedge.inference.event_input import Event
from dynedge.runs.folder import read_coverage
from dynedge.serving.engine import BusyError, Engine
from dynedge.serving.journal import DiskFullError, JournalUnavailableError

INTERVAL = 0.1  # seconds between two batches


class LogReplay(threading.Thread):
    """Event ids come from positions in the log, so events replayed before are duplicates."""

    def __init__(self, engine: Engine, log: EventLog, rate: float) -> None:
        super().__init__(name="dynedge-replay", daemon=True)
        session = engine.session
        if log.features.shape[1] != session.run_log.features.shape[1]:
            raise DataError(
                f"{log.path} has {log.features.shape[1]} features per event, but {session.folder} was trained with "
                f"{session.run_log.features.shape[1]}."
            )
        self.engine, self.log, self.rate = engine, log, rate
        trained = read_coverage(session.folder, session.run_log.num_items)
        is_training_log = session.run_log.metadata.get("trained_on", {}).get("fingerprint") == log.fingerprint
        self.start_at = (
            trained.events if is_training_log else int(np.searchsorted(log.time, trained.last_time, "right"))
        )
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        start, batch = self.start_at, min(1000, max(1, round(self.rate * INTERVAL)))
        while start < len(self.log) and not self._stopping.wait(batch / self.rate):
            stop = min(start + batch, len(self.log))
            try:
                self.engine.submit([self._event(k) for k in range(start, stop)]).result()
                start = stop
            except (BusyError, DiskFullError, JournalUnavailableError):
                continue

    def _event(self, k: int) -> Event:
        log = self.log
        user, item = str(log.user_ids[int(log.user[k])]), str(log.item_ids[int(log.item[k])])
        features = tuple(np.asarray(log.features[k]).tolist())
        return Event(user, item, float(log.time[k]), features, f"{log.fingerprint[:16]} {k}")
