"""Durable journal of accepted events: one SQLite file in WAL mode with synchronous=FULL.

Positions count from 1 in the order of arrival. An event whose event id is already in the journal is a duplicate and
is not stored again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.errors import DataError
from dynedge.inference.event_input import Event

JOURNAL = "journal.sqlite"  # in a service's data folder
VERSION = 2
READ_EVENTS = 4096  # events read together
LOOKUP_IDS = 500  # event ids looked up in one query
FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}

TABLES = f"""
CREATE TABLE IF NOT EXISTS events (
    position INTEGER PRIMARY KEY, event_id TEXT, user_id TEXT NOT NULL, item_id TEXT NOT NULL, time REAL NOT NULL,
    features BLOB);
CREATE UNIQUE INDEX IF NOT EXISTS by_event_id ON events (event_id) WHERE event_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS by_user ON events (user_id, position);
CREATE TABLE IF NOT EXISTS runs (
    fingerprint TEXT PRIMARY KEY, first_position INTEGER NOT NULL, trained_until REAL NOT NULL);
CREATE TABLE IF NOT EXISTS sources (name TEXT PRIMARY KEY, position TEXT NOT NULL);
PRAGMA user_version = {VERSION};
"""


class DiskFullError(Exception):
    """The disk is full; nothing of the transaction was stored."""


class Journal:
    """Written by one thread, read from any."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._writer = _connect(path)
            version = self._writer.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, VERSION):
                raise DataError(
                    f"{path} is a journal of version {version}, but this dynedge reads version {VERSION}; choose "
                    "another --data folder."
                )
            self._writer.executescript(TABLES)
            self.end = self._scalar("SELECT coalesce(max(position), 0) FROM events")
        except sqlite3.DatabaseError as error:
            raise DataError(f"{path} cannot be used as a journal: {error}.") from None
        self._readers, self._lock = threading.local(), threading.Lock()

    def close(self) -> None:
        self._writer.close()

    def append(self, events: Sequence[Event], source: tuple[str, str] | None = None) -> list[bool]:
        """Stores events in one transaction; returns which are new, the others being duplicates.

        `source` is the name of a stream and the position it has been read to with these events.
        """
        with self._lock:
            return self._append(events, source)

    def _append(self, events: Sequence[Event], source: tuple[str, str] | None) -> list[bool]:
        stored = self._stored_ids([event.event_id for event in events if event.event_id is not None])
        rows, is_new, end = list[tuple[Any, ...]](), list[bool](), self.end
        for event in events:
            is_new.append(event.event_id is None or event.event_id not in stored)
            if is_new[-1]:
                end += 1
                features = np.asarray(event.features, np.float32).tobytes() if event.features else None
                rows.append((end, event.event_id, event.user, event.item, event.time, features))
                if event.event_id is not None:
                    stored.add(event.event_id)
        if rows or source:
            self._commit(rows, source)
            self.end = end
        return is_new

    def _commit(self, rows: list[tuple[Any, ...]], source: tuple[str, str] | None) -> None:
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            self._writer.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)
            if source:
                self._writer.execute("INSERT OR REPLACE INTO sources VALUES (?, ?)", source)
            self._writer.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            if error.sqlite_errorcode & 0xFF in FULL:
                raise DiskFullError(f"the disk of {self.path.parent} is full") from None
            raise

    def _stored_ids(self, ids: list[str]) -> set[str]:
        stored = set[str]()
        for start in range(0, len(ids), LOOKUP_IDS):
            batch = ids[start : start + LOOKUP_IDS]
            marks = ",".join("?" * len(batch))
            query = f"SELECT event_id FROM events WHERE event_id IN ({marks})"
            stored.update(row[0] for row in self._writer.execute(query, batch))
        return stored

    def since(self, position: int) -> Iterator[list[Event]]:
        """Yields the events after a position, in order, in batches."""
        while rows := self._rows("position > ? ORDER BY position LIMIT ?", position, READ_EVENTS):
            yield [_event(row) for row in rows]
            position = rows[-1][0]

    def of_user(self, user: str, limit: int) -> list[Event]:
        """Returns a user's latest events, newest first."""
        return [_event(row) for row in self._rows("user_id = ? ORDER BY position DESC LIMIT ?", user, limit)]

    def source(self, name: str) -> str | None:
        """Returns the position to which a stream has been read."""
        with self._lock:
            row = self._writer.execute("SELECT position FROM sources WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def register_run(self, fingerprint: str, trained_until: float) -> tuple[int, float]:
        """Registers a run on first use; returns its first position and the time of its newest training event.

        A run applies all events after its first position and, of those before it, the ones newer than its training
        events. The first run of a journal applies everything.
        """
        with self._lock:
            values = self.end, trained_until if self.end else -np.inf
            self._writer.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?)", (fingerprint, *values))
            query = "SELECT first_position, trained_until FROM runs WHERE fingerprint = ?"
            position, time = self._writer.execute(query, (fingerprint,)).fetchone()
        return int(position), float(time)

    def _rows(self, where: str, *parameters: Any) -> list[tuple[Any, ...]]:
        if not hasattr(self._readers, "connection"):
            self._readers.connection = _connect(self.path)
        query = f"SELECT position, event_id, user_id, item_id, time, features FROM events WHERE {where}"
        return list(self._readers.connection.execute(query, parameters))

    def _scalar(self, query: str) -> int:
        return int(self._writer.execute(query).fetchone()[0])


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _event(row: tuple[Any, ...]) -> Event:
    _, event_id, user, item, time, features = row
    return Event(user, item, time, tuple(np.frombuffer(features, np.float32).tolist()) if features else (), event_id)
