"""The journal that replicas share: a Redis Stream, whose entry ids are the positions.

Keys, for a stream named `events`:

    events                the entries. A replica writes one field, `event`: a JSON list of an event's fields. Other
                          programs write user_id, item_id, timestamp, and optionally event_id and features (JSON)
    {events}:ids          hash: event id -> position of its first entry
    {events}:runs         hash: fingerprint of a run -> its first position and the time of its newest training event
    {events}:dead         stream: entries that could not be applied, with the reason
    {events}:dead-ids     set: their positions
    {events}:trimmed      hash: position up to which entries were removed, and the time of the newest of them

A script appends all events of a batch, or none. It looks event ids up in the hash, so that two replicas cannot append
the same event; a valid entry of another program takes its event id when the first replica applies it.
"""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

import numpy as np
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dynedge.errors import DataError, UsageError
from dynedge.inference.event_input import Event
from dynedge.serving.journal import Appended, DiskFullError, Entry, JournalUnavailableError

READ_ENTRIES = 2048  # entries read together
DEAD_FIELDS = 64  # fields of an entry that a dead letter has
HISTORY_ENTRIES = 20_000  # newest entries in which a user's events are looked for
TIMEOUT = 5.0  # seconds until a silent Redis counts as unavailable
MIN_VERSION = 7  # of Redis: counts of entries
MAX_AHEAD = 86400.0  # seconds by which an entry of another program may be newer than its arrival
POSITION = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")
SEQUENCE_BITS = 64
NO_SPACE = "'maxmemory'", "MISCONF"  # in errors: out of memory, or of disk
SETTINGS = "appendonly", "appendfsync", "maxmemory-policy"

APPEND = """
local positions = {}
for k = 1, #ARGV, 2 do
  local id = ARGV[k]
  local first = id ~= '' and redis.call('HGET', KEYS[2], id)
  if first then
    positions[#positions + 1] = '=' .. first
  else
    local position = redis.call('XADD', KEYS[1], '*', 'event', ARGV[k + 1])
    if id ~= '' then redis.call('HSET', KEYS[2], id, position) end
    positions[#positions + 1] = position
  end
end
return positions
"""
CLAIM = """
local first = {}
for k = 1, #ARGV, 2 do
  redis.call('HSETNX', KEYS[1], ARGV[k], ARGV[k + 1])
  first[#first + 1] = redis.call('HGET', KEYS[1], ARGV[k])
end
return first
"""
DEAD_LETTER = """
if redis.call('SADD', KEYS[2], ARGV[1]) == 1 then redis.call('XADD', KEYS[1], '*', 'position', unpack(ARGV)) end
"""
TRIM = """
redis.call('XTRIM', KEYS[1], 'MINID', ARGV[1])
local newest = tonumber(redis.call('HGET', KEYS[3], 'time') or '-inf')
redis.call('HSET', KEYS[3], 'position', ARGV[2], 'time', tostring(math.max(newest, tonumber(ARGV[3]))))
for k = 4, #ARGV, 2 do
  if redis.call('HGET', KEYS[2], ARGV[k]) == ARGV[k + 1] then redis.call('HDEL', KEYS[2], ARGV[k]) end
end
"""


class RedisJournal:
    """Implements Journal (journal.py) for redis://HOST:PORT/STREAM; with `?db=N` in database N.

    `keep_seconds` is the retention time of `trim`; by default nothing is removed.
    """

    shared = True

    def __init__(self, url: str, keep_seconds: float | None = None) -> None:
        self.name, self.keep_seconds = _without_password(url), keep_seconds
        address, self.stream = _split(url, self.name)
        self._lock, self._end, self._count = threading.Lock(), 0, 0
        self._counts = deque([(0, 0)], 1024)  # pairs of a position that was the end, and the number of entries then
        options: dict[str, Any] = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}
        try:
            # Without retries: an append whose answer was lost may be stored.
            self._redis: Any = redis.Redis.from_url(address, retry=Retry(NoBackoff(), 0), **options)
            version = str(self._redis.info("server")["redis_version"])
            self._refresh()
        except (redis.RedisError, ValueError, OSError) as error:
            raise UsageError(f"--journal {self.name} cannot be used: {error}.") from None
        if int(version.partition(".")[0]) < MIN_VERSION:
            raise UsageError(f"--journal {self.name} is Redis {version}; version {MIN_VERSION} or later is needed.")
        scripts = (self._redis.register_script(script) for script in (APPEND, CLAIM, DEAD_LETTER, TRIM))
        self._append, self._claim, self._dead_letter, self._trim = scripts

    def close(self) -> None:
        self._redis.close()

    def durability(self) -> str:
        """Returns one sentence on what the settings of Redis mean for acknowledged events."""
        try:
            settings = {name: self._redis.config_get(name).get(name, "") for name in SETTINGS}
        except redis.RedisError:
            return f"{self.name} does not tell its settings: check that appendonly is yes and appendfsync is always."
        if settings["maxmemory-policy"] not in ("noeviction", ""):
            return (
                f"WARNING: {self.name} removes keys when memory is full (maxmemory-policy "
                f"{settings['maxmemory-policy']}), and with them events; set it to noeviction."
            )
        if settings["appendonly"] != "yes":
            return f"WARNING: {self.name} loses acknowledged events when it restarts; set appendonly to yes."
        if settings["appendfsync"] != "always":
            return (
                f"WARNING: {self.name} can lose the last second of acknowledged events when its machine fails; set "
                f"appendfsync to always (now: {settings['appendfsync']})."
            )
        return f"{self.name} has acknowledged events on its disk (appendfsync always)."

    # ---- positions

    @property
    def end(self) -> int:
        return self._end

    @property
    def count(self) -> int:
        return self._count

    def lag(self, position: int) -> int:
        if position >= self._end:
            return 0
        return self._count - max(count for at, count in self._counts.copy() if at <= position)

    def text(self, position: int) -> str:
        return f"{position >> SEQUENCE_BITS}-{position & ((1 << SEQUENCE_BITS) - 1)}"

    def parse(self, text: str) -> int:
        match = POSITION.fullmatch(text)
        if not match:
            raise UsageError(f"{text[:40]!r} is not a position; use one from an earlier response.")
        return _position(text)

    def _reached(self, position: int, count: int | None = None) -> None:
        """Notes that the stream has an entry at a position, and how many there were up to it, if that is known."""
        with self._lock:
            self._end = max(self._end, position)
            if count is not None:
                self._count = count
                if position > self._counts[-1][0]:
                    self._counts.append((position, count))

    def _refresh(self) -> None:
        """Asks for the end of the stream; raises DataError if it has lost entries since it was asked last."""
        end, count = self._end, self._count
        if self._redis.exists(self.stream):
            info = self._redis.xinfo_stream(self.stream)
            last, added = _position(info["last-generated-id"]), int(info["entries-added"])
        else:
            last = added = 0
        if last < end or added < count:
            raise self._lost(end)
        self._reached(last, added)

    # ---- entries

    def append(self, events: Sequence[Event]) -> Appended:
        arguments = [text for event in events for text in (event.event_id or "", json.dumps(event))]
        with self._translated():
            answers = self._append(keys=[self.stream, self._key("ids")], args=arguments)
            positions = [_position(answer.lstrip(b"=")) for answer in answers]
        self._reached(max(positions, default=0))
        return Appended(positions, [not answer.startswith(b"=") for answer in answers])

    def read(self, after: int) -> list[Entry]:
        with self._translated():
            rows = self._redis.xrange(self.stream, f"({self.text(after)}", "+", count=READ_ENTRIES)
            entries = [_entry(*row) for row in rows]
        if entries:
            self._reached(entries[-1].position)
        return entries

    def repeated(self, entries: Sequence[Entry]) -> set[int]:
        named = [entry for entry in entries if entry.event is None and "event_id" in entry.fields]
        if not named:
            return set()
        texts = [text for entry in named for text in (entry.fields["event_id"], self.text(entry.position))]
        with self._translated():
            first = self._claim(keys=[self._key("ids")], args=[_bytes(text) for text in texts])
            pairs = zip(named, first, strict=True)
            return {entry.position for entry, at in pairs if _position(at) != entry.position}

    def wait(self, after: int, seconds: float) -> bool:
        with self._translated():
            milliseconds = max(1, int(seconds * 1000))
            found = self._redis.xread({self.stream: self.text(after)}, count=1, block=milliseconds)
            self._refresh()
        return bool(found)

    def check(self, position: int) -> None:
        with self._translated():
            self._refresh()
            there = not position or self._redis.xrange(self.stream, self.text(position), self.text(position))
        if not there:
            raise self._lost(position)

    def _lost(self, position: int) -> DataError:
        return DataError(
            f"{self.name} does not have the entry {self.text(position)} any more, which a state of this replica "
            "contains: Redis lost events, or they were trimmed. Restart the replica; if this message comes "
            "again, restore the data of Redis, or move the folder of snapshots away to go on without the missing "
            "events."
        )

    def of_user(self, user: str, limit: int) -> list[Entry]:
        """Returns a user's latest events, of the newest entries of the stream only."""
        found, last = list[Entry](), "+"
        with self._translated():
            for _ in range(HISTORY_ENTRIES // READ_ENTRIES):
                rows = self._redis.xrevrange(self.stream, last, "-", count=READ_ENTRIES)
                entries = [_entry(*row) for row in rows]
                found += [entry for entry in entries if _user(entry) == user]
                if len(found) >= limit or len(rows) < READ_ENTRIES:
                    break
                last = f"({rows[-1][0].decode()}"
        return found[:limit]

    def register_run(self, fingerprint: str, trained_until: float) -> tuple[int, float]:
        with self._translated():
            self._refresh()
            values = self.text(self._end), trained_until if self._end else -np.inf
            self._redis.hsetnx(self._key("runs"), fingerprint, json.dumps(values))
            position, time = json.loads(self._redis.hget(self._key("runs"), fingerprint))
            return _position(position), float(time)

    def dead_letter(self, entry: Entry, reason: str) -> None:
        fields = {"event": json.dumps(entry.event)} if entry.event else entry.fields
        texts = [text for pair in list(fields.items())[:DEAD_FIELDS] for text in pair]
        arguments = [_bytes(text) for text in (self.text(entry.position), "reason", reason, *texts)]
        with self._translated():
            self._dead_letter(keys=[self._key("dead"), self._key("dead-ids")], args=arguments)

    # ---- retention

    @property
    def trimmed(self) -> tuple[int, float]:
        with self._translated():
            position, time = self._redis.hmget(self._key("trimmed"), "position", "time")
            return (0, -np.inf) if position is None else (_position(position), float(time))

    def trim(self, before: int) -> None:
        if self.keep_seconds is None or not before:
            return
        with self._translated():
            seconds, microseconds = self._redis.time()
            expired = int((seconds - self.keep_seconds) * 1000 + microseconds / 1000) << SEQUENCE_BITS
            limit = min(before, expired)
            while rows := self._redis.xrange(self.stream, "-", f"({self.text(limit)}", count=READ_ENTRIES):
                self._trim_entries([_entry(*row) for row in rows])

    def _trim_entries(self, entries: list[Entry]) -> None:
        times = [entry.event.time if entry.event else entry.arrived + MAX_AHEAD for entry in entries]
        ids = [
            (event_id, self.text(entry.position))
            for entry in entries
            if (event_id := entry.event.event_id if entry.event else entry.fields.get("event_id"))
        ]
        last = entries[-1].position
        texts = self.text(last + 1), self.text(last), repr(max(times)), *(text for pair in ids for text in pair)
        arguments = [_bytes(text) for text in texts]
        self._trim(keys=[self.stream, self._key("ids"), self._key("trimmed")], args=arguments)

    def _key(self, name: str) -> str:
        return f"{{{self.stream}}}:{name}"

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translates errors of Redis: what was asked may or may not have happened."""
        try:
            yield
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            raise JournalUnavailableError(f"the journal {self.name} cannot be reached ({error})") from None
        except redis.ResponseError as error:
            if any(word in str(error) for word in NO_SPACE):
                raise DiskFullError(f"the journal {self.name} has no space left") from None
            if "WRONGTYPE" in str(error):
                raise self._damaged(str(error)) from None
            raise JournalUnavailableError(f"the journal {self.name} refuses a command ({error})") from None
        except (ValueError, TypeError) as error:
            raise self._damaged(str(error)) from None

    def _damaged(self, reason: str) -> DataError:
        return DataError(
            f"{self.name} has keys that dynedge did not write ({reason}): restore the data of Redis, or choose "
            "another stream."
        )


def _position(text: str | bytes) -> int:
    milliseconds, sequence = (text if isinstance(text, str) else text.decode()).split("-")
    return int(milliseconds) << SEQUENCE_BITS | int(sequence)


def _entry(name: bytes, values: dict[bytes, bytes]) -> Entry:
    position = _position(name)
    event = _stored_event(values[b"event"]) if len(values) == 1 and b"event" in values else None
    if event is not None:
        return Entry(position, event)
    fields = {_text(key): _text(value) for key, value in values.items()}
    return Entry(position, None, fields, (position >> SEQUENCE_BITS) / 1000)


def _stored_event(text: bytes) -> Event | None:
    """Returns the event that a replica has stored; None for anything else."""
    try:
        user, item, time, features, event_id = json.loads(text)
        texts = all(isinstance(text, str) for text in (user, item, event_id or ""))
        if texts and isinstance(features, list):
            return Event(user, item, float(time), tuple(map(float, features)), event_id)
    except (ValueError, TypeError, OverflowError, RecursionError):
        pass
    return None


def _user(entry: Entry) -> str | None:
    return entry.fields.get("user_id") if entry.event is None else entry.event.user


def _text(raw: bytes) -> str:
    """Bytes that are not UTF-8 remain distinguishable, and are refused as ids."""
    return raw.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _split(url: str, name: str) -> tuple[str, str]:
    """Returns the address of a server and the name of the stream."""
    parts = urlsplit(url)
    options, stream = parse_qs(parts.query), unquote(parts.path.strip("/"))
    if parts.scheme not in ("redis", "rediss") or not stream or set(options) - {"db"}:
        raise UsageError(f"--journal {name} should be redis://HOST:PORT/STREAM, with ?db=N for another database.")
    return urlunsplit(parts._replace(path=f"/{options.get('db', ['0'])[0]}", query="")), stream


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
