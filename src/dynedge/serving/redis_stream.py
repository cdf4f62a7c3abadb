"""Event source that reads a Redis Stream with a consumer group.

An entry has the fields of an event: user_id, item_id, timestamp, and optionally event_id and features (a JSON list).
Without an event_id, its stream position is the id. An entry is acknowledged once it is in the journal, which stores
the stream position in the same transaction: an entry that Redis delivers again is a duplicate, and a consumer group
that Redis has lost is created again at the stored position.
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
from dynedge.serving.schemas import EventBody
from dynedge.serving.validation import validate_event

BATCH_ENTRIES = 1000  # entries read at once
WAIT = 0.5  # seconds to wait for entries, and after an error
CONSUMER = "dynedge"
Entry = tuple[str, dict[str, str]]


class RedisSource(threading.Thread):
    """Thread that reads redis://HOST:PORT/DB?stream=events&group=dynedge into an engine."""

    def __init__(self, engine: Engine, url: str) -> None:
        super().__init__(name="dynedge-redis", daemon=True)
        parts = urlsplit(url)
        options = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.stream, self.group = options.get("stream", "events"), options.get("group", "dynedge")
        self.engine, self.source = engine, f"redis {self.stream} {self.group}"
        self.read = self.rejected = 0
        self._stopping = threading.Event()
        try:
            self._redis: Any = redis.Redis.from_url(urlunsplit(parts._replace(query="")), decode_responses=True)
            self._redis.ping()
        except (redis.RedisError, ValueError, OSError) as error:
            raise UsageError(f"--source {_without_password(url)} cannot be reached: {error}.") from None

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._redis.close()

    def run(self) -> None:
        recovered = False
        while not self._stopping.is_set():
            try:
                if not recovered:
                    self._create_group()
                    while self._read("0"):  # delivered to us before a crash and not acknowledged
                        pass
                    recovered = True
                self._read(">")
            except (redis.RedisError, OSError, BusyError, DiskFullError) as error:
                print(f"dynedge: {self.source}: {error or 'the queue is full'}; retrying", file=sys.stderr)
                recovered = False
                self._stopping.wait(WAIT)

    def _create_group(self) -> None:
        try:
            start = self.engine.journal.source(self.source) or "0"
            self._redis.xgroup_create(self.stream, self.group, id=start, mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def _read(self, after: str) -> int:
        """Reads entries, submits them to the engine and acknowledges them; returns their number."""
        wait = int(WAIT * 1000) if after == ">" else None
        streams = self._redis.xreadgroup(self.group, CONSUMER, {self.stream: after}, count=BATCH_ENTRIES, block=wait)
        entries: list[Entry] = [(entry, fields or {}) for _, batch in streams or [] for entry, fields in batch]
        if not entries:
            return 0
        events = [event for entry in entries if (event := self._event(*entry)) is not None]
        self.engine.submit(events, (self.source, entries[-1][0])).result()
        self._redis.xack(self.stream, self.group, *(entry for entry, _ in entries))
        self.read += len(entries)
        return len(entries)

    def _event(self, entry: str, fields: dict[str, str]) -> Event | None:
        """Returns the event of an entry; an invalid entry is reported on stderr and skipped."""
        try:
            values: dict[str, Any] = {"event_id": f"{self.source} {entry}", **fields}
            if "features" in values:
                values["features"] = json.loads(values["features"])
            return validate_event(self.engine.session, EventBody(**values))
        except (ValidationError, DynedgeError, ValueError, TypeError) as error:
            self.rejected += 1
            print(f"dynedge: {self.source}: entry {entry} is not a valid event: {_summary(error)}", file=sys.stderr)
            return None


def _summary(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
