"""The journal of a service: the durable order of all accepted events. An interface with two implementations.

`sqlite_journal.py` is a file of one service; `redis_journal.py` is a Redis Stream that replicas share. Both store an
event whose event id they already have no second time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from dynedge.errors import DynedgeError
from dynedge.inference.event_input import Event


class DiskFullError(DynedgeError):
    """The journal has no space left; nothing of the request was stored."""

    exit_code = 3


class JournalUnavailableError(DynedgeError):
    """The journal cannot be reached; a request that failed with this may or may not be stored."""

    exit_code = 3


class Entry(NamedTuple):
    """One entry of a journal. Positions increase, but need not be consecutive."""

    position: int
    event: Event | None  # None: written by another program, not validated yet
    fields: Mapping[str, str] = {}  # of an entry without an event
    arrived: float = 0.0  # seconds since 1970, of an entry without an event


class Appended(NamedTuple):
    """Outcome of an append, per event: the position, for a duplicate that of the first, and whether it is new."""

    positions: list[int]
    is_new: list[bool]


class Journal(Protocol):
    """Appended to by one thread, read from any."""

    name: str  # in messages
    shared: bool  # whether other processes append to it

    @property
    def end(self) -> int:
        """Position of the newest entry, as far as this process knows; 0 if there is none."""

    @property
    def count(self) -> int:
        """Number of entries ever appended, as far as this process knows."""

    def lag(self, position: int) -> int:
        """Returns the number of entries after a position, as far as this process knows."""

    def append(self, events: Sequence[Event]) -> Appended:
        """Stores events together and returns once they are durable."""

    def read(self, after: int) -> list[Entry]:
        """Returns the next entries after a position, a few thousand at most; empty at the end."""

    def repeated(self, entries: Sequence[Entry]) -> set[int]:
        """Returns the positions of those entries whose event id an earlier valid entry has.

        `entries` are valid: those that another program wrote take their event id now, if it is free.
        """

    def wait(self, after: int, seconds: float) -> bool:
        """Waits until there is an entry after a position; False if there is none in that time."""

    def check(self, position: int) -> None:
        """Raises DataError if the journal does not have all entries after a position, or ends before it."""

    def of_user(self, user: str, limit: int) -> list[Entry]:
        """Returns a user's latest entries, newest first."""

    def register_run(self, fingerprint: str, trained_until: float) -> tuple[int, float]:
        """Registers a run on first use; returns its first position and the time of its newest training event.

        A run applies all events after its first position and, of those before it, the ones newer than its training
        events. The first run of an empty journal applies everything.
        """

    def dead_letter(self, entry: Entry, reason: str) -> None:
        """Stores an entry that cannot be applied, with the reason, apart from the others; once per entry."""

    @property
    def trimmed(self) -> tuple[int, float]:
        """Position up to which entries were removed, 0 if none were, and the time of the newest of them."""

    def trim(self, before: int) -> None:
        """Removes entries before a position that are older than the retention time, where there is one."""

    def text(self, position: int) -> str:
        """Returns a position as clients see it."""

    def parse(self, text: str) -> int:
        """Returns the position of a text, or raises UsageError."""

    def close(self) -> None: ...


def entries_after(journal: Journal, position: int = 0) -> Iterator[Entry]:
    """Yields all entries after a position, in order."""
    while entries := journal.read(position):
        yield from entries
        position = entries[-1].position
