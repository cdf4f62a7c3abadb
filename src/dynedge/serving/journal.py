"""The journal: every accepted event, durable before anyone is told that it was accepted.

One SQLite file in WAL mode; a commit waits for the disk (synchronous=FULL). A position, from 1 on, is an event's
place in the order of arrival. An event id that is there already has no second effect.
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

JOURNAL = "journal.sqlite"  # in a service's own folder
VERSION = 1
PIECE = 4096  # events read together
ASKED = 500  # event ids looked up together
FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}

TABLES = f"""
CREATE TABLE IF NOT EXISTS events (
    position INTEGER PRIMARY KEY, event_id TEXT, user TEXT NOT NULL, item TEXT NOT NULL, time REAL NOT NULL,
    features BLOB);
CREATE UNIQUE INDEX IF NOT EXISTS by_event_id ON events (event_id) WHERE event_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS by_user ON events (user, position);
CREATE TABLE IF NOT EXISTS runs (fingerprint TEXT PRIMARY KEY, joined INTEGER NOT NULL, newest REAL NOT NULL);
CREATE TABLE IF NOT EXISTS sources (name TEXT PRIMARY KEY, position TEXT NOT NULL);
PRAGMA user_version = {VERSION};
"""


class DiskFullError(Exception):
    """Nothing of what was to be written is there."""


class Journal:
    """Written by one thread; read from any."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._writing = _connect(path)
            version = self._writing.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, VERSION):
                raise DataError(f"{path} is a journal of version {version}; this dynedge reads version {VERSION}.")
            self._writing.executescript(TABLES)
            self.end = self._one("SELECT coalesce(max(position), 0) FROM events")
        except sqlite3.DatabaseError as error:
            raise DataError(f"{path} cannot be used as a journal: {error}.") from None
        self._reading, self._lock = threading.local(), threading.Lock()

    def close(self) -> None:
        self._writing.close()

    def append(self, events: Sequence[Event], source: tuple[str, str] | None = None) -> list[bool]:
        """Which of them are new, and durable now; the others' event ids are known. All in one transaction.

        `source`: a stream's name and how far it has been read with these events.
        """
        with self._lock:
            return self._append(events, source)

    def _append(self, events: Sequence[Event], source: tuple[str, str] | None) -> list[bool]:
        known = self._known([event.event_id for event in events if event.event_id is not None])
        rows, new, end = list[tuple[Any, ...]](), list[bool](), self.end
        for event in events:
            new.append(event.event_id is None or event.event_id not in known)
            if new[-1]:
                end += 1
                features = np.asarray(event.features, np.float32).tobytes() if event.features else None
                rows.append((end, event.event_id, event.user, event.item, event.time, features))
                if event.event_id is not None:
                    known.add(event.event_id)
        if rows or source:
            self._commit(rows, source)
            self.end = end
        return new

    def _commit(self, rows: list[tuple[Any, ...]], source: tuple[str, str] | None) -> None:
        try:
            self._writing.execute("BEGIN IMMEDIATE")
            self._writing.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)
            if source:
                self._writing.execute("INSERT OR REPLACE INTO sources VALUES (?, ?)", source)
            self._writing.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._writing.in_transaction:
                self._writing.execute("ROLLBACK")
            if error.sqlite_errorcode & 0xFF in FULL:
                raise DiskFullError(f"{self.path.parent} has no room for more events") from None
            raise

    def _known(self, ids: list[str]) -> set[str]:
        found = set[str]()
        for at in range(0, len(ids), ASKED):
            piece = ids[at : at + ASKED]
            marks = ",".join("?" * len(piece))
            query = f"SELECT event_id FROM events WHERE event_id IN ({marks})"
            found.update(row[0] for row in self._writing.execute(query, piece))
        return found

    def since(self, position: int) -> Iterator[list[Event]]:
        """The events after a position, in order, piece by piece."""
        while rows := self._rows("position > ? ORDER BY position LIMIT ?", position, PIECE):
            yield [_event(row) for row in rows]
            position = rows[-1][0]

    def of_user(self, user: str, limit: int) -> list[Event]:
        """A user's latest events, the newest first."""
        return [_event(row) for row in self._rows("user = ? ORDER BY position DESC LIMIT ?", user, limit)]

    def source(self, name: str) -> str | None:
        """How far a stream has been read."""
        with self._lock:
            row = self._writing.execute("SELECT position FROM sources WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def join(self, fingerprint: str, newest: float) -> tuple[int, float]:
        """(position, time) at which a run joined: it learned from what came up to both, and takes in all else.

        The run that begins a journal has all of it to take in; a later one what is newer than its training events.
        """
        with self._lock:
            joined = self.end, newest if self.end else -np.inf
            self._writing.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?)", (fingerprint, *joined))
            query = "SELECT joined, newest FROM runs WHERE fingerprint = ?"
            position, time = self._writing.execute(query, (fingerprint,)).fetchone()
        return int(position), float(time)

    def _rows(self, where: str, *given: Any) -> list[tuple[Any, ...]]:
        if not hasattr(self._reading, "connection"):
            self._reading.connection = _connect(self.path)
        query = f"SELECT position, event_id, user, item, time, features FROM events WHERE {where}"
        return list(self._reading.connection.execute(query, given))

    def _one(self, query: str) -> int:
        return int(self._writing.execute(query).fetchone()[0])


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _event(row: tuple[Any, ...]) -> Event:
    _, event_id, user, item, time, features = row
    return Event(user, item, time, tuple(np.frombuffer(features, np.float32).tolist()) if features else (), event_id)
