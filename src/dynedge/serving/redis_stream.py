"""Events from a Redis Stream, read with a consumer group.

An entry has the fields of an event: user_id, item_id, timestamp, and where there are any event_id and features (a
JSON list). Without an event_id it is known by its place in the stream. It is acknowledged to Redis once it is in the
journal, and the journal keeps how far the stream was read in the same commit: an entry that Redis delivers again has
no second effect, and a group that Redis has lost goes on where it was.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

import redis
from pydantic import ValidationError

from dynedge.errors import DynedgeError, UsageError
from dynedge.inference.event_input import Event
from dynedge.serving.engine import BusyError, Engine
from dynedge.serving.journal import DiskFullError
from dynedge.serving.schemas import EventIn
from dynedge.serving.validation import checked

TOGETHER = 1000  # entries read at once
WAIT = 0.5  # seconds to wait for entries, and after something went wrong
CONSUMER = "dynedge"
Entry = tuple[str, dict[str, str]]


class RedisSource(threading.Thread):
    """redis://HOST:PORT/DB?stream=events&group=dynedge"""

    def __init__(self, engine: Engine, url: str) -> None:
        super().__init__(name="dynedge-redis", daemon=True)
        parts = urlsplit(url)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.stream, self.group = asked.get("stream", "events"), asked.get("group", "dynedge")
        self.engine, self.source = engine, f"redis {self.stream} {self.group}"
        self.read = self.rejected = 0
        self._stopping = threading.Event()
        try:
            self._redis: Any = redis.Redis.from_url(urlunsplit(parts._replace(query="")), decode_responses=True)
            self._redis.ping()
        except (redis.RedisError, ValueError, OSError) as error:
            raise UsageError(f"--source {_public(url)} cannot be reached: {error}.") from None

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._redis.close()

    def run(self) -> None:
        begun = False
        while not self._stopping.is_set():
            try:
                if not begun:
                    self._join_group()
                    while self._take("0"):  # what was delivered before and not acknowledged
                        pass
                    begun = True
                self._take(">")
            except (redis.RedisError, OSError, BusyError, DiskFullError) as error:
                print(f"dynedge: {self.source} waits: {error or 'too much to do'}", file=sys.stderr)
                begun = False
                self._stopping.wait(WAIT)

    def _join_group(self) -> None:
        try:
            start = self.engine.journal.source(self.source) or "0"
            self._redis.xgroup_create(self.stream, self.group, id=start, mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def _take(self, after: str) -> int:
        """Entries into the journal, then acknowledged; how many."""
        wait = int(WAIT * 1000) if after == ">" else None
        found = self._redis.xreadgroup(self.group, CONSUMER, {self.stream: after}, count=TOGETHER, block=wait)
        entries: list[Entry] = [(place, fields or {}) for _, several in found or [] for place, fields in several]
        if not entries:
            return 0
        events = [event for entry in entries if (event := self._event(*entry)) is not None]
        self.engine.submit(events, (self.source, entries[-1][0])).result()
        self._redis.xack(self.stream, self.group, *(place for place, _ in entries))
        self.read += len(entries)
        return len(entries)

    def _event(self, place: str, fields: dict[str, str]) -> Event | None:
        """None of an entry that is no event: it is told of, and left behind."""
        try:
            told: dict[str, Any] = {"event_id": f"{self.source} {place}", **fields}
            if "features" in told:
                told["features"] = json.loads(told["features"])
            return checked(self.engine.live, EventIn(**told))
        except (ValidationError, DynedgeError, ValueError, TypeError) as error:
            self.rejected += 1
            print(f"dynedge: {self.source}, entry {place} is no event: {_short(error)}", file=sys.stderr)
            return None


def _short(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


def _public(url: str) -> str:
    """Without a password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
