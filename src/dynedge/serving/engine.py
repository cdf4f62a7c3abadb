"""The serving engine: events go to the journal and are then applied to the state; queries read the state in between.

One writer thread takes all queued requests, commits their events to the journal in one transaction, applies the new
ones in journal order and only then answers. One lock separates queries from state updates. Snapshots are copied under
that lock, which is quick, and written by a background thread.
"""

from __future__ import annotations

import hashlib
import queue
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dynedge.errors import DataError
from dynedge.inference.event_input import Event
from dynedge.inference.late_events import LateEventPolicy
from dynedge.inference.session import Session
from dynedge.models.base import State
from dynedge.runs.event_coverage import Coverage
from dynedge.runs.folder import CONFIG, CURRENT_STATE, MODEL, STATE
from dynedge.serving.drift import DriftTracker
from dynedge.serving.journal import JOURNAL, DiskFullError, Journal
from dynedge.serving.snapshots import SnapshotInfo, Snapshots
from dynedge.utils.atomic_io import file_sha256
from dynedge.utils.file_lock import FileLock
from dynedge.utils.tensor_io import Tensors, select_prefix, with_prefixes

COMMIT_EVENTS = 4096  # a commit takes queued requests until it has this many events
MAX_QUEUED_EVENTS = 20_000  # further requests are refused
SNAPSHOT_EVENTS, SNAPSHOT_SECONDS = 100_000, 60.0  # a snapshot is due after either


class BusyError(Exception):
    """The queue of events is full; retry later."""


class EngineFailedError(Exception):
    """The journal has events that could not be applied to the state; a restart replays them."""


@dataclass(frozen=True)
class Receipt:
    """Outcome of one request: new events, duplicates, and how many of the new ones were late."""

    accepted: int
    duplicates: int
    late: int


@dataclass(frozen=True)
class _Request:
    events: Sequence[Event]
    source: tuple[str, str] | None
    receipt: Future[Receipt]


class Engine:
    """A run being served. `data` is the folder of its journal and snapshots, used by one process at a time."""

    def __init__(self, run: Path, data: Path) -> None:
        self.run, self.data = run, data
        self.lock = threading.Lock()
        data.mkdir(parents=True, exist_ok=True)
        self._folder_lock = FileLock(data, "stop it, or choose another --data")
        self.journal = Journal(data / JOURNAL)
        self.snapshots = Snapshots(data / "snapshots")
        self.drift = DriftTracker()
        self.accepted = self.late = self.duplicates = 0
        self.snapshot_error = self.failure = ""
        self._applied = self.journal.end  # journal position of the state
        self.session, self._fingerprint = self._open()
        self.drift.reset(self.session)
        self._queue: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._queued, self._queued_lock = 0, threading.Lock()
        self._stopping = threading.Event()
        self._reload_lock = threading.Lock()
        self.snapshot_position, self._snapshot_due = self._applied, time.monotonic() + SNAPSHOT_SECONDS
        self._snapshot_thread: threading.Thread | None = None
        self._writer = threading.Thread(target=self._write, name="dynedge-writer", daemon=True)
        self._writer.start()

    def close(self) -> None:
        """Finishes queued requests, writes a last snapshot and releases the folder."""
        self._stopping.set()
        self._queue.put(None)
        self._writer.join()
        if self._snapshot_thread:
            self._snapshot_thread.join()
        if self._applied > self.snapshot_position:
            self._write_snapshot(*self._copy_state())
        self.journal.close()
        self._folder_lock.release()

    # ---- opening a run

    def _open(self) -> tuple[Session, str]:
        """Opens the run, restores its newest snapshot and replays the journal from there."""
        session, fingerprint = Session.open(self.run), _fingerprint(self.run)
        registered = self.journal.register_run(fingerprint, session.coverage.last_time)
        snapshot = self.snapshots.newest(fingerprint)
        position = 0
        if snapshot is not None:
            info, tensors = snapshot
            position = info.position
            _restore(session, info, tensors)
        self._replay(session, registered, position, self.journal.end)
        session.enable_quantized_search()
        _warm_up(session)
        return session, fingerprint

    def _replay(self, session: Session, registered: tuple[int, float], position: int, end: int) -> int:
        """Applies the journal from `position` to `end`, except for events that the run was trained on."""
        first_position, trained_until = registered
        for batch in self.journal.since(position):
            events = batch[: end - position]
            if not events:
                break
            earlier = max(0, min(first_position - position, len(events)))
            position += len(events)
            session.observe([event for k, event in enumerate(events) if k >= earlier or event.time > trained_until])
        return position

    def reload(self) -> int:
        """Opens the run folder again, replays the journal and replaces the session; returns the journal position.

        Queries and events continue meanwhile; they wait only while the last few events are replayed.
        """
        with self._reload_lock:
            session, fingerprint = Session.open(self.run), _fingerprint(self.run)
            registered = self.journal.register_run(fingerprint, session.coverage.last_time)
            position = 0
            while self.journal.end - position > COMMIT_EVENTS:
                position = self._replay(session, registered, position, self.journal.end)
            session.enable_quantized_search()
            with self.lock:
                # The writer applies events under this lock, after its commit: `journal.end` may be one commit ahead
                # of the state, so the new session has to reach the applied position, not the end.
                position = self._replay(session, registered, position, self._applied)
                self.session, self._fingerprint = session, fingerprint
                self.snapshot_position = 0  # there is no snapshot of this run yet
                self.drift.reset(session)
            return position

    # ---- events

    def submit(self, events: Sequence[Event], source: tuple[str, str] | None = None) -> Future[Receipt]:
        """Queues events; the receipt is set once they are durable and applied. Raises BusyError on a full queue."""
        with self._queued_lock:
            if (self._queued and self._queued + len(events) > MAX_QUEUED_EVENTS) or self._stopping.is_set():
                raise BusyError
            if self.failure:
                raise EngineFailedError(self.failure)
            self._queued += len(events)
        request = _Request(events, source, Future())
        self._queue.put(request)
        return request.receipt

    def _write(self) -> None:
        """Loop of the writer thread."""
        while batch := self._next_batch():
            running = [request for request in batch if request.receipt.set_running_or_notify_cancel()]
            try:
                self._commit_and_apply(running)
            except Exception as error:
                if not isinstance(error, DiskFullError):
                    self.failure = f"{type(error).__name__}: {error}"
                for request in running:
                    if not request.receipt.done():
                        request.receipt.set_exception(error)
            with self._queued_lock:
                self._queued -= sum(len(request.events) for request in batch)
            self._snapshot_if_due()

    def _next_batch(self) -> list[_Request]:
        """Waits for requests and returns all that are queued, up to a number of events; empty when stopping."""
        batch, count = list[_Request](), 0
        while count < COMMIT_EVENTS and not (batch and self._queue.empty()):
            request = self._queue.get()
            if request is None:
                if batch:
                    self._queue.put(None)
                break
            batch.append(request)
            count += len(request.events)
        return batch

    def _commit_and_apply(self, batch: Sequence[_Request]) -> None:
        events = [event for request in batch for event in request.events]
        source = next((request.source for request in reversed(batch) if request.source), None)
        is_new = self.journal.append(events, source)
        with self.lock:
            applied = self.session.observe([event for event, new in zip(events, is_new, strict=True) if new])
            self._applied = self.journal.end
            self.drift.record(self.session, applied)
        assert applied.label is not None
        late_flags, start = iter(applied.label.tolist()), 0
        for request in batch:
            flags = is_new[start : start + len(request.events)]
            start += len(flags)
            late = sum(int(next(late_flags)) for new in flags if new)
            receipt = Receipt(sum(flags), len(flags) - sum(flags), late)
            self.accepted += receipt.accepted
            self.duplicates += receipt.duplicates
            self.late += receipt.late
            request.receipt.set_result(receipt)

    @property
    def queued(self) -> int:
        """Events that are not durable yet."""
        return self._queued

    # ---- snapshots

    def _snapshot_if_due(self) -> None:
        since = self._applied - self.snapshot_position
        due = since >= SNAPSHOT_EVENTS or (since and time.monotonic() >= self._snapshot_due)
        if due and not (self._snapshot_thread and self._snapshot_thread.is_alive()):
            arguments = self._copy_state()
            self._snapshot_thread = threading.Thread(
                target=self._write_snapshot, args=arguments, name="dynedge-snapshot"
            )
            self._snapshot_thread.start()

    def _copy_state(self) -> tuple[SnapshotInfo, Tensors]:
        with self.lock:
            session = self.session
            added = list(session.users.added), list(session.items.added)
            info = SnapshotInfo(self._applied, self._fingerprint, *added)
            tensors = with_prefixes(
                state=dict(session.state),
                coverage=session.coverage.tensors(),
                last_event_time=session.late_events.tensors(),
            )
            return info, dict(State(tensors).clone())

    def _write_snapshot(self, info: SnapshotInfo, tensors: Tensors) -> None:
        self._snapshot_due = time.monotonic() + SNAPSHOT_SECONDS
        try:
            self.snapshots.write(info, tensors)
            self.snapshot_position, self.snapshot_error = info.position, ""
        except (OSError, DataError) as error:  # nothing is lost: the journal has every event
            self.snapshot_error = str(error)
            print(f"dynedge: the snapshot could not be written: {error}", file=sys.stderr)


def _warm_up(session: Session) -> None:
    """Compiles kernels before the first request instead of during it."""
    if len(session.users) and len(session.items):
        with session.hypothetical(Event(str(session.users[0]), str(session.items[0]), session.coverage.last_time)):
            session.top_items(np.zeros(1, np.int64), 1)


def _restore(session: Session, info: SnapshotInfo, tensors: Tensors) -> None:
    for ids, added in ((session.users, info.added_users), (session.items, info.added_items)):
        for external_id in added:
            ids.add(external_id)
    session.grow()
    session.state = State(select_prefix(tensors, "state")).placed_like(session.state)
    session.coverage = Coverage.from_tensors(select_prefix(tensors, "coverage"))
    session.late_events = LateEventPolicy.from_tensors(select_prefix(tensors, "last_event_time"))


def _fingerprint(run: Path) -> str:
    """Hash of the files that determine a run's initial state and parameters."""
    digest = hashlib.sha256()
    for name in (CONFIG, MODEL, STATE, CURRENT_STATE):
        if (run / name).is_file():
            digest.update(file_sha256(run / name).encode())
    return digest.hexdigest()
