"""The journal of one service: one SQLite file in WAL mode with synchronous=FULL. Positions count from 1."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.errors import DataError, UsageError
from dynedge.inference.event_input import Event
from dynedge.serving.journal import Appended, DiskFullError, Entry

JOURNAL = "journal.sqlite"  # in a service's data folder
VERSION = 2
READ_EVENTS = 4096  # events read together
LOOKUP_IDS = 500  # event ids looked up in one query
DAMAGE = sqlite3.DatabaseError, UnicodeDecodeError  # the latter: SQLite's message quotes a damaged name
FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}

TABLES = f"""
CREATE TABLE IF NOT EXISTS events (
    position INTEGER PRIMARY KEY, event_id TEXT, user_id TEXT NOT NULL, item_id TEXT NOT NULL, time REAL NOT NULL,
    features BLOB);
CREATE UNIQUE INDEX IF NOT EXISTS by_event_id ON events (event_id) WHERE event_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS by_user ON events (user_id, position);
CREATE TABLE IF NOT EXISTS runs (
    fingerprint TEXT PRIMARY KEY, first_position INTEGER NOT NULL, trained_until REAL NOT NULL);
CREATE TABLE IF NOT EXISTS dead_letters (position INTEGER PRIMARY KEY, reason TEXT NOT NULL);
PRAGMA user_version = {VERSION};
"""


class SqliteJournal:
    """Implements Journal (journal.py)."""

    shared = False

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        self._newest: list[Entry] = []  # of the last append
        self._opened: list[sqlite3.Connection] = []
        try:
            self._writer = self._connect()
            version = self._writer.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, VERSION):
                raise DataError(
                    f"{path} is a journal of version {version}, but this dynedge reads version {VERSION}; choose "
                    "another --data folder."
                )
            self._writer.executescript(TABLES)
            self.end = self._scalar("SELECT coalesce(max(position), 0) FROM events")
        except DAMAGE as error:
            self.close()
            raise DataError(f"{path} cannot be used as a journal: {error}.") from None
        except DataError:
            self.close()
            raise
        self._readers, self._lock = threading.local(), threading.Lock()

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()

    def _connect(self) -> sqlite3.Connection:
        """Returns a connection that `close` closes."""
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._opened.append(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    @property
    def count(self) -> int:
        return self.end

    def lag(self, position: int) -> int:
        return self.end - position

    def append(self, events: Sequence[Event]) -> Appended:
        """Stores events in one transaction."""
        with self._lock:
            stored = self._stored_ids([event.event_id for event in events if event.event_id is not None])
            entries, positions, is_new = list[Entry](), list[int](), list[bool]()
            for event in events:
                position = None if event.event_id is None else stored.get(event.event_id)
                is_new.append(position is None)
                if position is None:
                    position = self.end + len(entries) + 1
                    entries.append(Entry(position, event))
                    if event.event_id is not None:
                        stored[event.event_id] = position
                positions.append(position)
            if entries:
                self._commit(entries)
                self._newest, self.end = entries, entries[-1].position
            return Appended(positions, is_new)

    def _commit(self, entries: list[Entry]) -> None:
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            self._writer.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", map(_row, entries))
            self._writer.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            if error.sqlite_errorcode & 0xFF in FULL:
                raise DiskFullError(f"the disk of {self.path.parent} is full") from None
            raise

    def _stored_ids(self, ids: list[str]) -> dict[str, int]:
        """Returns the positions of those event ids that are in the journal."""
        stored = dict[str, int]()
        for start in range(0, len(ids), LOOKUP_IDS):
            batch = ids[start : start + LOOKUP_IDS]
            marks = ",".join("?" * len(batch))
            query = f"SELECT event_id, position FROM events WHERE event_id IN ({marks})"
            stored.update(self._writer.execute(query, batch))
        return stored

    def read(self, after: int) -> list[Entry]:
        newest = self._newest
        if newest and newest[0].position == after + 1:
            return newest  # without asking the file
        rows = self._rows("position > ? ORDER BY position LIMIT ?", after, READ_EVENTS)
        for expected, row in enumerate(rows, after + 1):
            if row[0] != expected:
                raise self._damaged(f"position {expected} is missing")
        return [self._entry(row) for row in rows]

    def repeated(self, entries: Sequence[Entry]) -> set[int]:
        return set()  # event ids are unique in the table

    def wait(self, after: int, seconds: float) -> bool:
        return self.end > after

    def check(self, position: int) -> None:
        if position > self.end:
            raise DataError(f"{self.path} ends at position {self.end}, before position {position}.")

    def of_user(self, user: str, limit: int) -> list[Entry]:
        rows = self._rows("user_id = ? ORDER BY position DESC LIMIT ?", user, limit)
        return [self._entry(row) for row in rows]

    def register_run(self, fingerprint: str, trained_until: float) -> tuple[int, float]:
        with self._lock:
            values = self.end, trained_until if self.end else -np.inf
            query = "SELECT first_position, trained_until FROM runs WHERE fingerprint = ?"
            try:
                self._writer.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?)", (fingerprint, *values))
                position, time = self._writer.execute(query, (fingerprint,)).fetchone()
                return int(position), float(time)
            except (sqlite3.DatabaseError, TypeError, ValueError) as error:
                raise self._damaged(str(error)) from None

    def dead_letter(self, entry: Entry, reason: str) -> None:
        with self._lock:
            self._writer.execute("INSERT OR IGNORE INTO dead_letters VALUES (?, ?)", (entry.position, reason))

    @property
    def trimmed(self) -> tuple[int, float]:
        return 0, -np.inf

    def trim(self, before: int) -> None:
        """Nothing is removed: a journal on a disk may grow."""

    def text(self, position: int) -> str:
        return str(position)

    def parse(self, text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise UsageError(f"{text!r} is not a position; use one from an earlier response.")
        return int(text)

    def _rows(self, where: str, *parameters: Any) -> list[tuple[Any, ...]]:
        if not hasattr(self._readers, "connection"):
            self._readers.connection = self._connect()
        query = f"SELECT position, event_id, user_id, item_id, time, features FROM events WHERE {where}"
        try:
            return list(self._readers.connection.execute(query, parameters))
        except DAMAGE as error:
            raise self._damaged(str(error)) from None

    def _entry(self, row: tuple[Any, ...]) -> Entry:
        position, event_id, user, item, time, blob = row
        texts = isinstance(user, str) and isinstance(item, str) and isinstance(event_id, str | None)
        if not (texts and isinstance(time, float) and isinstance(blob, bytes | None) and len(blob or b"") % 4 == 0):
            raise self._damaged(f"position {position} is no event")
        features = tuple(np.frombuffer(blob, np.float32).tolist()) if blob else ()
        return Entry(position, Event(user, item, time, features, event_id))

    def _damaged(self, reason: str) -> DataError:
        return DataError(
            f"{self.path} is damaged ({reason}): restore it from a backup, or choose another --data folder."
        )

    def _scalar(self, query: str) -> int:
        return int(self._writer.execute(query).fetchone()[0])


def _row(entry: Entry) -> tuple[Any, ...]:
    event = entry.event
    assert event is not None
    features = np.asarray(event.features, np.float32).tobytes() if event.features else None
    return entry.position, event.event_id, event.user, event.item, event.time, features
