"""The serving engine: events go to the journal and are then applied to the state; queries read the state in between.

One writer thread takes all queued requests, appends their events to the journal together, applies what the journal
has after the state's position, in its order, and only then answers. Where replicas share the journal, another thread
waits for entries of others and wakes the writer. One lock separates queries from state updates. Snapshots are copied
under that lock, which is quick, and written by a background thread.
"""

from __future__ import annotations

import hashlib
import queue
import random
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

import numpy as np

from dynedge.errors import DataError, DynedgeError
from dynedge.inference.event_input import Event
from dynedge.inference.late_events import LateEventPolicy
from dynedge.inference.session import Session
from dynedge.models.base import State
from dynedge.runs.folder import CONFIG, CURRENT_STATE, MODEL, STATE
from dynedge.serving.drift import DriftTracker
from dynedge.serving.journal import DiskFullError, Entry, Journal, JournalUnavailableError
from dynedge.serving.snapshots import SnapshotInfo, Snapshots
from dynedge.serving.sqlite_journal import JOURNAL, SqliteJournal
from dynedge.serving.validation import entry_event
from dynedge.utils.file_checks import remembered_sha256
from dynedge.utils.file_lock import FileLock
from dynedge.utils.tensor_io import Tensors, select_prefix, with_prefixes

COMMIT_EVENTS = 4096  # a commit takes queued requests until it has this many events
MAX_QUEUED_EVENTS = 20_000  # further requests are refused
SNAPSHOT_EVENTS, SNAPSHOT_SECONDS = 100_000, 60.0  # a snapshot is due after either
RELOAD_PASSES = 3  # replays of what has arrived meanwhile, each shorter, before events and queries have to wait
FOLLOW_SECONDS = 0.5  # longest wait for entries of other replicas, and pause while the journal cannot be reached


class BusyError(Exception):
    """The queue of events is full; retry later."""


class BehindError(Exception):
    """The state has not reached a position that a request asks for; retry later or elsewhere."""


class EngineFailedError(Exception):
    """The journal has events that could not be applied to the state; a restart replays them."""


@dataclass(frozen=True)
class Receipt:
    """Outcome of one request: new events, duplicates, how many of the new ones were late, and the last position.

    `late` is None if the events are durable and not applied yet.
    """

    accepted: int
    duplicates: int
    late: int | None
    position: int


@dataclass(frozen=True)
class _Request:
    events: Sequence[Event]
    receipt: Future[Receipt]


class _Signal(Enum):
    STOP = auto()
    WAKE = auto()  # the journal has entries of another replica


@dataclass(frozen=True)
class _Registration:
    """Which events of the journal a run applies: all after `first_position`, and earlier ones if they are newer."""

    fingerprint: str
    first_position: int
    trained_until: float

    def applies(self, position: int, event: Event) -> bool:
        return position > self.first_position or event.time > self.trained_until


class Engine:
    """A run being served. `data` is the folder of its snapshots and, without another `journal`, of its journal.

    A journal in the folder belongs to one process; with a shared journal, the replicas share the folder.
    """

    def __init__(self, run: Path, data: Path, journal: Journal | None = None) -> None:
        self.run, self.data = run, data
        self.lock = threading.Lock()
        data.mkdir(parents=True, exist_ok=True)
        self.drift = DriftTracker()
        self.accepted = self.late = self.duplicates = self.applied = self.dead_lettered = 0
        self.candidates_accepted = self.candidates_dropped = 0  # of background learning
        self.snapshot_error = self.failure = self.journal_error = ""
        self.position = 0  # journal position of the state
        self.snapshot_position = self._snapshot_events = 0  # of the newest snapshot
        with ExitStack() as on_failure:
            self._folder_lock = FileLock(data, "stop it, or choose another --data") if journal is None else None
            if self._folder_lock:
                on_failure.callback(self._folder_lock.release)
            self.journal: Journal = journal or SqliteJournal(data / JOURNAL)
            on_failure.callback(self.journal.close)
            self.snapshots = Snapshots(data / "snapshots", shared=journal is not None)
            self.session, self._registration = self._open()
            on_failure.pop_all()
        self.drift.reset(self.session)
        self._queue: queue.SimpleQueue[_Request | _Signal] = queue.SimpleQueue()
        self._queued, self._queued_lock = 0, threading.Lock()
        self._stopping, self._read_all = threading.Event(), threading.Event()
        self._reload_lock = threading.Lock()
        self._snapshot_due = time.monotonic() + SNAPSHOT_SECONDS
        self._snapshot_thread: threading.Thread | None = None
        self._writer = threading.Thread(target=self._write, name="dynedge-writer", daemon=True)
        self._writer.start()
        self._follower = threading.Thread(target=self._follow, name="dynedge-follower", daemon=True)
        if self.journal.shared:
            self._follower.start()

    def close(self) -> None:
        """Finishes queued requests, writes a last snapshot and releases the folder."""
        self._stopping.set()
        self._queue.put(_Signal.STOP)
        self._writer.join()
        if self.journal.shared:
            self._follower.join()
        if self._snapshot_thread:
            self._snapshot_thread.join()
        if self.position > self.snapshot_position:
            self._write_snapshot(*self._copy_state())
        self.journal.close()
        if self._folder_lock:
            self._folder_lock.release()

    # ---- opening a run

    def _open(self) -> tuple[Session, _Registration]:
        """Opens the run, restores its newest snapshot and replays the journal from there."""
        self._check_snapshots()
        session, registration = self._open_run()
        session, self.position = self._restore_newest(session, registration)
        self.snapshot_position, self._snapshot_events = self.position, session.coverage.events
        self.position = self._replay(session, registration, self.position)
        session.enable_quantized_search()
        _warm_up(session)
        return session, registration

    def _check_snapshots(self) -> None:
        """Raises DataError if a snapshot has events that the journal does not have: they would vanish silently."""
        newest, end = self.snapshots.newest_position, self.journal.end
        if newest > end:
            positions = f"{self.journal.text(newest)}, but {self.journal.name} ends at {self.journal.text(end)}"
            raise DataError(
                f"{self.snapshots.folder} has a snapshot of position {positions}: the journal was lost or restored "
                "from an older backup. Restore the newest journal, or move the folder of snapshots away to go on "
                "without the missing events."
            )

    def _open_run(self) -> tuple[Session, _Registration]:
        session, fingerprint = Session.open(self.run), _fingerprint(self.run)
        registered = self.journal.register_run(fingerprint, session.coverage.last_time)
        return session, _Registration(fingerprint, *registered)

    def _restore_newest(
        self, session: Session, registration: _Registration, until: int | None = None
    ) -> tuple[Session, int]:
        """Restores the run's newest snapshot that fits it; returns the session and the position, 0 without one.

        Raises DataError if the journal does not have all events after it.
        """
        position = 0
        for info, tensors in self.snapshots.of_run(registration.fingerprint, until):
            self.journal.check(info.position)
            try:
                _restore(session, info, tensors)
                position = info.position
                break
            except DataError as error:
                at = self.journal.text(info.position)
                self.snapshots.report(f"The snapshot of position {at} is damaged: {error}.")
                session = Session.open(self.run)
        trimmed, newest = self.journal.trimmed
        needed = trimmed > registration.first_position or newest > registration.trained_until
        if position < trimmed and needed:
            raise DataError(
                f"{self.journal.name} was trimmed up to {self.journal.text(trimmed)}, and {self.snapshots.folder} "
                f"has no snapshot of {self.run} after that; pass the folder of the other replicas' snapshots with "
                "--data, or train on events up to then."
            )
        return session, position

    def _replay(self, session: Session, registration: _Registration, position: int, until: int | None = None) -> int:
        """Applies the journal after `position`, up to `until` or to its end; returns the position reached."""
        while entries := self.journal.read(position):
            if until is not None:
                entries = [entry for entry in entries if entry.position <= until]
            if not entries:
                break
            session.observe([event for _, event in self._applicable(session, registration, entries)])
            position = entries[-1].position
        return position

    def _applicable(
        self, session: Session, registration: _Registration, entries: Sequence[Entry]
    ) -> list[tuple[int, Event]]:
        """Returns the entries that a run applies; one that cannot be applied becomes a dead letter."""
        valid = list[tuple[Entry, Event]]()
        for entry in entries:
            try:
                valid.append((entry, entry_event(session, entry)))
            except DynedgeError as error:
                self.journal.dead_letter(entry, str(error))
                self.dead_lettered += 1
                print(f"dynedge: {self.journal.text(entry.position)} is not applied: {error}", file=sys.stderr)
        repeated = self.journal.repeated([entry for entry, _ in valid])
        new = [(entry.position, event) for entry, event in valid if entry.position not in repeated]
        return [pair for pair in new if registration.applies(*pair)]

    def reload(self) -> int:
        """Opens the run folder again, replays the journal and replaces the session; returns the journal position.

        Queries and events continue meanwhile; they wait only while the last few events are replayed.
        """
        with self._reload_lock:
            session, registration = self._open_run()
            session, position = self._restore_newest(session, registration, self.position)
            for _ in range(RELOAD_PASSES):
                position = self._replay(session, registration, position, self.position)
            session.enable_quantized_search()
            _warm_up(session)
            with self.lock:
                self._replay(session, registration, position, self.position)
                self.session, self._registration = session, registration
                self.snapshot_position, self._snapshot_events = 0, session.coverage.events  # it has no snapshot yet
                self.drift.reset(session)
                return self.position

    # ---- events

    def submit(self, events: Sequence[Event]) -> Future[Receipt]:
        """Queues events; the receipt is set once they are durable and applied. Raises BusyError on a full queue."""
        with self._queued_lock:
            if (self._queued and self._queued + len(events) > MAX_QUEUED_EVENTS) or self._stopping.is_set():
                raise BusyError
            if self.failure:
                raise EngineFailedError(self.failure)
            if self.journal_error:
                raise JournalUnavailableError(self.journal_error)
            self._queued += len(events)
        request = _Request(events, Future())
        self._queue.put(request)
        return request.receipt

    def _write(self) -> None:
        """Loop of the writer thread."""
        stopping = False
        while not stopping:
            batch, stopping = self._next_batch()
            running = [request for request in batch if request.receipt.set_running_or_notify_cancel()]
            try:
                self._append_and_apply(running)
            except Exception as error:
                if not isinstance(error, DiskFullError | JournalUnavailableError):
                    self.failure = f"{type(error).__name__}: {error}"
                for request in running:
                    if not request.receipt.done():
                        request.receipt.set_exception(error)
            with self._queued_lock:
                self._queued -= sum(len(request.events) for request in batch)
            self._snapshot_if_due()

    def _next_batch(self) -> tuple[list[_Request], bool]:
        """Waits for requests or a signal; returns queued requests, up to a number of events, and whether to stop."""
        batch, count = list[_Request](), 0
        while count < COMMIT_EVENTS:
            request = self._queue.get()
            if request is _Signal.STOP:
                return batch, True
            if isinstance(request, _Request):
                batch.append(request)
                count += len(request.events)
            if self._queue.empty():
                break
        return batch, False

    def _append_and_apply(self, batch: Sequence[_Request]) -> None:
        events = [event for request in batch for event in request.events]
        appended = self.journal.append(events) if events else None
        late = self._apply_new()
        if appended is None:
            return
        start = 0
        for request in batch:
            part = slice(start, start + len(request.events))
            start = part.stop
            flags = zip(appended.positions[part], appended.is_new[part], strict=True)
            new = [position for position, is_new in flags if is_new]
            last = max(appended.positions[part], default=self.position)
            late_events = sum(late.get(position, False) for position in new) if last <= self.position else None
            receipt = Receipt(len(new), len(request.events) - len(new), late_events, last)
            self.accepted += receipt.accepted
            self.duplicates += receipt.duplicates
            request.receipt.set_result(receipt)

    def _apply_new(self) -> dict[int, bool]:
        """Applies what the journal has after the state; returns which of the applied positions were late.

        After a few thousand entries requests have priority: the rest waits for the next turn.
        """
        late = dict[int, bool]()
        try:
            while self.position < self.journal.end and (entries := self.journal.read(self.position)):
                late |= self._apply(entries)
                if len(late) >= COMMIT_EVENTS:
                    self._queue.put(_Signal.WAKE)
                    break
        except JournalUnavailableError as error:  # what was appended is durable
            self.journal_error = str(error)
        self._read_all.set()
        return late

    def _apply(self, entries: Sequence[Entry]) -> dict[int, bool]:
        with self.lock:
            applicable = self._applicable(self.session, self._registration, entries)
            applied = self.session.observe([event for _, event in applicable])
            assert applied.label is not None
            is_late = applied.label.astype(bool).tolist()
            late = dict(zip((position for position, _ in applicable), is_late, strict=True))
            self.applied += len(late)
            self.late += sum(is_late)
            self.drift.record(self.session, applied)
            self.position = entries[-1].position  # last: whoever sees it finds the counts of its events
        return late

    def _follow(self) -> None:
        """Loop of the thread that waits for entries of other replicas, and for a journal that cannot be reached."""
        while not self._stopping.is_set():
            try:
                self._read_all.clear()
                if self.journal_error:
                    self.journal.check(self.position)
                    self.journal_error = ""
                if self.journal.wait(self.position, FOLLOW_SECONDS):
                    self._queue.put(_Signal.WAKE)
                    self._read_all.wait(FOLLOW_SECONDS)
            except JournalUnavailableError as error:
                self.journal_error = str(error)
                self._stopping.wait(FOLLOW_SECONDS)
            except Exception as error:  # without this thread the state would fall behind unnoticed
                self.failure = str(error)
                return

    @property
    def queued(self) -> int:
        """Events that are not durable yet."""
        return self._queued

    @property
    def lag(self) -> int:
        """Entries of the journal after the state's position, as far as this process knows."""
        return self.journal.lag(self.position)

    # ---- snapshots

    @property
    def snapshot_lag(self) -> int:
        """Applied events that the newest snapshot does not have."""
        return self.session.coverage.events - self._snapshot_events

    def _snapshot_if_due(self) -> None:
        since = self.session.coverage.events - self._snapshot_events
        overdue = time.monotonic() >= self._snapshot_due and self.position > self.snapshot_position
        busy = self._snapshot_thread is not None and self._snapshot_thread.is_alive()
        if busy or not (since >= SNAPSHOT_EVENTS or overdue):
            return
        try:
            if not self._other_replica_has_one():
                arguments = self._copy_state()
                self._snapshot_thread = threading.Thread(
                    target=self._write_snapshot, args=arguments, name="dynedge-snapshot"
                )
                self._snapshot_thread.start()
        except Exception as error:  # no memory for the copy, for example; the writer goes on
            self._report_failed_snapshot(error)

    def _other_replica_has_one(self) -> bool:
        """Whether another replica has written a snapshot lately; it counts as this one's."""
        latest = self.snapshots.latest_info(self._registration.fingerprint) if self.journal.shared else None
        if latest is None or latest[0].position <= self.snapshot_position:
            return False
        info, age = latest
        self.snapshot_position, self._snapshot_events = info.position, info.events
        self._snapshot_due = time.monotonic() + SNAPSHOT_SECONDS - age
        return age < SNAPSHOT_SECONDS and self.snapshot_lag < SNAPSHOT_EVENTS

    def _copy_state(self) -> tuple[SnapshotInfo, Tensors]:
        with self.lock:
            session = self.session
            added = list(session.users.added), list(session.items.added)
            info = SnapshotInfo(self.position, self._registration.fingerprint, *added, session.coverage.events)
            tensors = with_prefixes(
                state=dict(session.state),
                coverage=session.coverage.tensors(),
                last_event_time=session.late_events.tensors(),
            )
            return info, dict(State(tensors).clone())

    def _write_snapshot(self, info: SnapshotInfo, tensors: Tensors) -> None:
        self._postpone_snapshot()
        try:
            self.snapshots.write(info, tensors)
            self.journal.trim(self.snapshots.oldest_position)
            self.snapshot_error = ""
            if info.fingerprint == self._registration.fingerprint:  # else the run was replaced meanwhile
                self.snapshot_position, self._snapshot_events = info.position, info.events
        except Exception as error:  # nothing is lost: the journal has every event
            self._report_failed_snapshot(error)

    def _postpone_snapshot(self) -> None:
        jitter = random.uniform(1.0, 1.2)  # so that not all replicas write one at the same time
        self._snapshot_due = time.monotonic() + SNAPSHOT_SECONDS * jitter

    def _report_failed_snapshot(self, error: Exception) -> None:
        self._postpone_snapshot()
        self.snapshot_error = str(error) or type(error).__name__
        print(f"dynedge: the snapshot could not be written: {self.snapshot_error}", file=sys.stderr)


def _warm_up(session: Session) -> None:
    """Compiles kernels before the first request instead of during it."""
    if len(session.users) and len(session.items):
        with session.hypothetical(Event(str(session.users[0]), str(session.items[0]), session.coverage.last_time)):
            session.top_items(np.zeros(1, np.int64), 1)


def _restore(session: Session, info: SnapshotInfo, tensors: Tensors) -> None:
    session.add_ids(info.added_users, info.added_items)
    session.restore(select_prefix(tensors, "state"), select_prefix(tensors, "coverage"))
    sizes = len(session.users), len(session.items)
    session.late_events = LateEventPolicy.from_tensors(select_prefix(tensors, "last_event_time"), *sizes)


def _fingerprint(run: Path) -> str:
    """Hash of the files that determine a run's initial state and parameters."""
    digest = hashlib.sha256()
    for name in (CONFIG, MODEL, STATE, CURRENT_STATE):
        if (run / name).is_file():
            digest.update(remembered_sha256(run / name).encode())
    return digest.hexdigest()
