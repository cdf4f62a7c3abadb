"""A living run: events go into the journal and then move the states; questions read the states in between.

One thread writes: it takes all requests that wait, makes their events durable in one commit, moves the states past
the new ones in the order of the journal, and only then answers. One lock keeps questions and moves apart. Snapshots
are copied under that lock, which is quick, and written by a thread of their own.
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
from dynedge.inference.late_events import Clock
from dynedge.inference.session import Live
from dynedge.models.base import State
from dynedge.runs.coverage import Coverage
from dynedge.runs.folder import CONFIG, CURRENT_STATE, MODEL, STATE
from dynedge.serving.drift import Traces
from dynedge.serving.journal import JOURNAL, DiskFullError, Journal
from dynedge.serving.snapshots import About, Snapshots
from dynedge.utils.atomic_io import file_sha256
from dynedge.utils.file_lock import FileLock
from dynedge.utils.tensor_io import Tensors, select_prefix, with_prefixes

TOGETHER = 4096  # events committed together, about
WAITING = 20_000  # events that may wait; more are refused
EVERY_EVENTS, EVERY_SECONDS = 100_000, 60.0  # a snapshot is due


class BusyError(Exception):
    """More waits than will be done soon: come again."""


class BrokenError(Exception):
    """Events are in the journal that the states have not moved past; opened anew, they do."""


@dataclass(frozen=True)
class Receipt:
    accepted: int
    duplicates: int
    late: int


@dataclass(frozen=True)
class _Asked:
    events: Sequence[Event]
    source: tuple[str, str] | None
    answer: Future[Receipt]


class Engine:
    """`data` is this service's own folder: journal and snapshots. One process at a time uses it."""

    def __init__(self, run: Path, data: Path) -> None:
        self.run, self.data = run, data
        self.lock = threading.Lock()
        self._lock_folder()
        self.journal = Journal(data / JOURNAL)
        self.snapshots = Snapshots(data / "snapshots")
        self.traces = Traces()
        self.accepted = self.late = self.duplicates = 0
        self.snapshot_failed = self.broken = ""
        self._moved = self.journal.end  # the position that the states stand at
        self.live, self._fingerprint = self._open()
        self.traces.begin(self.live)
        self._queue: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._waiting, self._count = 0, threading.Lock()
        self._stopping = threading.Event()
        self._swapping = threading.Lock()
        self.snapshot_at, self._snapshot_due = self._moved, time.monotonic() + EVERY_SECONDS
        self._saver: threading.Thread | None = None
        self._writer = threading.Thread(target=self._write, name="dynedge-writer", daemon=True)
        self._writer.start()

    def _lock_folder(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        self._folder_lock = FileLock(self.data, "stop it, or choose another --data")

    def close(self) -> None:
        """What waits is done first; then a last snapshot."""
        self._stopping.set()
        self._queue.put(None)
        self._writer.join()
        if self._saver:
            self._saver.join()
        if self._moved > self.snapshot_at:
            self._save(*self._copied())
        self.journal.close()
        self._folder_lock.release()

    # ---- opening

    def _open(self) -> tuple[Live, str]:
        """The run in the state it was left in: the newest snapshot, and the journal from there on."""
        live, fingerprint = Live.open(self.run), _fingerprint(self.run)
        joined_at = self.journal.join(fingerprint, live.coverage.last_time)
        found = self.snapshots.newest(fingerprint)
        position = 0
        if found is not None:
            about, tensors = found
            position = about.position
            _restore(live, about, tensors)
        self._catch_up(live, joined_at, position, self.journal.end)
        live.make_searchable()
        _warm_up(live)
        return live, fingerprint

    def _catch_up(self, live: Live, joined_at: tuple[int, float], position: int, end: int) -> int:
        """Take in the journal after `position`, up to `end`; what the run learned from is left out."""
        for piece in self.journal.since(position):
            events = piece[: end - position]
            if not events:
                break
            old = max(0, min(joined_at[0] - position, len(events)))
            position += len(events)
            live.observe([event for k, event in enumerate(events) if k >= old or event.time > joined_at[1]])
        return position

    def swap(self) -> int:
        """Open the run's folder anew, and put it in the old one's place: the journal is replayed into it first.

        Questions and events go on meanwhile; only the last few events are taken in while they wait. How many events
        of the journal it stands at.
        """
        with self._swapping:
            live, fingerprint = Live.open(self.run), _fingerprint(self.run)
            joined_at = self.journal.join(fingerprint, live.coverage.last_time)
            position = 0
            while self.journal.end - position > TOGETHER:
                position = self._catch_up(live, joined_at, position, self.journal.end)
            live.make_searchable()
            with self.lock:
                # The writer moves the states under this lock, right after its commit: `end` may be one commit ahead
                # of what it has moved past, so the position it stands at is the one to reach.
                position = self._catch_up(live, joined_at, position, self._moved)
                self.live, self._fingerprint = live, fingerprint
                self.snapshot_at = 0  # none is of this run
                self.traces.begin(live)
            return position

    # ---- events

    def submit(self, events: Sequence[Event], source: tuple[str, str] | None = None) -> Future[Receipt]:
        """Durable and taken in once the answer is there. BusyError, at once, where too much waits."""
        with self._count:
            if (self._waiting and self._waiting + len(events) > WAITING) or self._stopping.is_set():
                raise BusyError
            if self.broken:
                raise BrokenError(self.broken)
            self._waiting += len(events)
        asked = _Asked(events, source, Future())
        self._queue.put(asked)
        return asked.answer

    def _write(self) -> None:
        while together := self._next():
            begun = [asked for asked in together if asked.answer.set_running_or_notify_cancel()]
            try:
                self._take_in(begun)
            except Exception as error:
                if not isinstance(error, DiskFullError):
                    self.broken = f"{type(error).__name__}: {error}"
                for asked in begun:
                    if not asked.answer.done():
                        asked.answer.set_exception(error)
            with self._count:
                self._waiting -= sum(len(asked.events) for asked in together)
            self._snapshot_if_due()

    def _next(self) -> list[_Asked]:
        """All that wait, up to a number of events; nothing once the service stops."""
        together, count = list[_Asked](), 0
        while count < TOGETHER and not (together and self._queue.empty()):
            asked = self._queue.get()
            if asked is None:
                if together:
                    self._queue.put(None)
                break
            together.append(asked)
            count += len(asked.events)
        return together

    def _take_in(self, together: Sequence[_Asked]) -> None:
        events = [event for asked in together for event in asked.events]
        source = next((asked.source for asked in reversed(together) if asked.source), None)
        new = self.journal.append(events, source)
        with self.lock:
            taken = self.live.observe([event for event, is_new in zip(events, new, strict=True) if is_new])
            self._moved = self.journal.end
            self.traces.add(self.live, taken)
        assert taken.label is not None
        lateness, at = iter(taken.label.tolist()), 0
        for asked in together:
            flags = new[at : at + len(asked.events)]
            at += len(flags)
            late = sum(int(next(lateness)) for flag in flags if flag)
            receipt = Receipt(sum(flags), len(flags) - sum(flags), late)
            self.accepted += receipt.accepted
            self.duplicates += receipt.duplicates
            self.late += receipt.late
            asked.answer.set_result(receipt)

    @property
    def waiting(self) -> int:
        return self._waiting

    # ---- snapshots

    def _snapshot_if_due(self) -> None:
        since = self._moved - self.snapshot_at
        due = since >= EVERY_EVENTS or (since and time.monotonic() >= self._snapshot_due)
        if due and not (self._saver and self._saver.is_alive()):
            self._saver = threading.Thread(target=self._save, args=self._copied(), name="dynedge-snapshot")
            self._saver.start()

    def _copied(self) -> tuple[About, Tensors]:
        with self.lock:
            live = self.live
            about = About(self._moved, self._fingerprint, list(live.users.added), list(live.items.added))
            parts = with_prefixes(
                state=dict(live.state), coverage=live.coverage.tensors(), clock=live.clock.tensors()
            )
            return about, dict(State(parts).clone())

    def _save(self, about: About, tensors: Tensors) -> None:
        self._snapshot_due = time.monotonic() + EVERY_SECONDS
        try:
            self.snapshots.write(about, tensors)
            self.snapshot_at, self.snapshot_failed = about.position, ""
        except (OSError, DataError) as error:  # the journal has everything: the next one may go well
            self.snapshot_failed = str(error)
            print(f"dynedge: no snapshot could be written: {error}", file=sys.stderr)


def _warm_up(live: Live) -> None:
    """What is compiled on first use is compiled before the first event and the first question come."""
    if len(live.users) and len(live.items):
        with live.supposing(Event(str(live.users[0]), str(live.items[0]), live.coverage.last_time)):
            live.recommend(np.zeros(1, np.int64), 1)


def _restore(live: Live, about: About, tensors: Tensors) -> None:
    for names, later in ((live.users, about.users), (live.items, about.items)):
        for own in later:
            names.add(own)
    live.grow()
    live.state = State(select_prefix(tensors, "state")).beside(live.state)
    live.coverage, live.clock = (
        Coverage.from_tensors(select_prefix(tensors, "coverage")),
        Clock.of(select_prefix(tensors, "clock")),
    )


def _fingerprint(run: Path) -> str:
    """Of all that the states follow from."""
    digest = hashlib.sha256()
    for name in (CONFIG, MODEL, STATE, CURRENT_STATE):
        if (run / name).is_file():
            digest.update(file_sha256(run / name).encode())
    return digest.hexdigest()
