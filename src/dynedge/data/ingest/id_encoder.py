"""IdEncoder: a hash table from external ids to dense ids 0, 1, 2, … in order of first appearance.

One open-addressing table for integers and texts. A text that is the plain decimal form of a 64-bit integer is stored
as that integer, so "42" and 42 are the same id and "042" is another. If all ids of a column are integers they are
returned as integers, else all as strings, exactly as in the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dynedge.data.id_index import IdIndex
from dynedge.data.ingest.row_checks import DUPLICATE_EVENT_ID, VALID
from dynedge.errors import DataError
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled
from dynedge.utils.prefetch import prefetch_map

MAX_IDS = 2**31 - 1
PART_IDS = 1 << 20  # read at a time from a log
SCAN_THREADS = 2


class IdEncoder:
    """Growing hash table that assigns dense ids to the external ids of one column."""

    def __init__(self) -> None:
        self._slots = np.zeros((1 << 12, 2), np.int64)  # (key, dense id + 1), negated for a text; 0: free
        self._spans = np.zeros((1 << 10, 2), np.int64)  # by dense id: (integer, -1) or (start, stop) in the heap
        self._heap = np.zeros(1 << 14, np.uint8)  # bytes of all texts
        self._used = np.zeros(2, np.int64)  # number of dense ids, number of heap bytes

    @classmethod
    def of(cls, ids: IdIndex | None) -> IdEncoder:
        """Returns an encoder in which these external ids have their dense ids already."""
        encoder = cls()
        count = len(ids) if ids else 0
        if 2 * count > len(encoder._slots):  # room for all and as many again, so that nothing is copied meanwhile
            encoder._slots = np.zeros((1 << (2 * count).bit_length(), 2), np.int64)
            encoder._spans = np.zeros((2 * count, 2), np.int64)
        for part in _parts(ids):
            status, bad_column = np.zeros(len(part), np.uint8), np.zeros(len(part), np.int32)
            row = np.empty(len(part), np.int32)
            if part.offsets is None:
                encoder.encode_integers(part.values, status, bad_column, row)
            else:
                encoder.encode_texts(part.values, part.offsets[:-1], part.offsets[1:], status, bad_column, row)
        if len(encoder) != count:
            raise DataError("the log has an empty or a repeated id; prepare it again.")
        return encoder

    def __len__(self) -> int:
        return int(self._used[0])

    def are_in(self, ids: IdIndex | None) -> Array:
        """bool[len(self)]: whether each id of this encoder is one of `ids`, which are read once, in order."""
        found = np.zeros(len(self), bool)

        def mark(part: IdIndex) -> None:
            if part.offsets is None:
                _mark_integers(part.values, self._slots, found)
            else:
                _mark_texts(part.values, part.offsets, self._slots, self._spans, self._heap, found)

        for _ in prefetch_map(mark, _parts(ids), threads=SCAN_THREADS):
            pass
        return found

    def encode_texts(
        self, data: Array, start: Array, stop: Array, status: Array, bad_column: Array, out: Array, unique: int = -1
    ) -> None:
        """Writes the dense ids of valid rows to `out`; with `unique` (a column number) a known id rejects its row."""
        key, kind = np.empty(len(status), np.int64), np.empty(len(status), np.uint8)
        _hash_rows(data, start, stop, status, key, kind)
        longest = int((stop - start).max(initial=0))
        row = 0
        while row < len(status):
            self._grow(longest)
            row = _encode_texts(
                data,
                start,
                stop,
                key,
                kind,
                status,
                bad_column,
                out,
                unique,
                row,
                self._slots,
                self._spans,
                self._heap,
                self._used,
            )

    def encode_integers(self, values: Array, status: Array, bad_column: Array, out: Array, unique: int = -1) -> None:
        """As `encode_texts`, for a column of integers."""
        row = 0
        while row < len(status):
            self._grow(0)
            row = _encode_integers(values, status, bad_column, out, unique, row, self._slots, self._spans, self._used)

    def _grow(self, text_bytes: int) -> None:
        """Ensures capacity for at least one more id with a text of `text_bytes` bytes."""
        count, heap = int(self._used[0]), int(self._used[1])
        if count >= MAX_IDS - 1:
            raise DataError(
                f"a column has more than {MAX_IDS} different ids, the most that 32-bit dense ids can number."
            )
        if count + 1 > len(self._spans):
            self._spans = np.resize(self._spans, (2 * len(self._spans), 2))
        if heap + text_bytes > len(self._heap):
            self._heap = np.resize(self._heap, 2 * (heap + text_bytes))
        if 2 * (count + 1) > len(self._slots):
            slots = np.zeros((4 * len(self._slots), 2), np.int64)
            _rehash(self._slots, slots)
            self._slots = slots

    def external_ids(self, order: Array | None = None, *, as_texts: bool = False) -> IdIndex:
        """Returns the external ids by dense id, or in the given order; `as_texts`: also if all are integers."""
        spans = self._spans[: len(self)] if order is None else self._spans[order]
        if not as_texts and (spans[:, 1] == -1).all():
            return IdIndex(spans[:, 0].copy())
        lengths = _text_lengths(spans)
        offsets = np.zeros(len(spans) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        heap = np.empty(int(offsets[-1]), np.uint8)
        _write_texts(spans, self._heap, offsets, heap)
        return IdIndex(heap, offsets)


def texts_of(ids: IdIndex) -> Iterator[IdIndex]:
    """Yields integer ids as strings, in parts."""
    for part in _parts(ids):
        yield IdEncoder.of(part).external_ids(as_texts=True)


def _parts(ids: IdIndex | None) -> Iterator[IdIndex]:
    """Yields the ids in parts of PART_IDS, copied: a file mapped for reading is another type to the compiled code."""
    for start in range(0, len(ids) if ids else 0, PART_IDS):
        assert ids is not None
        if ids.offsets is None:
            yield IdIndex(np.array(ids.values[start : start + PART_IDS]))
        else:
            offsets = np.array(ids.offsets[start : start + PART_IDS + 1])
            yield IdIndex(np.array(ids.values[offsets[0] : offsets[-1]]), offsets - offsets[0])


@compiled
def _mix(key: int) -> np.uint64:
    """Returns a hash of a key (a 64-bit finalizer: multiply, shift, multiply)."""
    x = np.uint64(key)
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return x ^ (x >> np.uint64(32))


@compiled
def _parse_integer(data: Array, start: int, stop: int) -> tuple[bool, Any]:
    """Returns (whether a text is a plain decimal 64-bit integer, its value). Plain: no +, no leading zeros, no -0."""
    at, negative = start, data[start] == 45
    at += negative
    length = stop - at
    if length < 1 or length > 19 or (data[at] == 48 and (length > 1 or negative)):
        return False, 0
    value = np.uint64(0)
    for k in range(at, stop):
        if not 48 <= data[k] <= 57:
            return False, 0
        value = value * np.uint64(10) + np.uint64(data[k] - 48)
    if value > np.uint64(2**63 - 1):  # -2^63 is stored as text, which saves a special case
        return False, 0
    return True, -np.int64(value) if negative else np.int64(value)


@compiled
def _hash_text(data: Array, start: int, stop: int) -> Any:
    """FNV-1a."""
    x = np.uint64(0xCBF29CE484222325)
    for k in range(start, stop):
        x = (x ^ np.uint64(data[k])) * np.uint64(0x100000001B3)
    return np.int64(x)


@compiled
def _find_integer(slots: Array, key: int) -> Any:
    """Returns the slot of an integer, or the free slot where it belongs."""
    mask = len(slots) - 1
    at = np.int64(_mix(key)) & mask
    while slots[at, 1] != 0 and not (slots[at, 1] > 0 and slots[at, 0] == key):
        at = (at + 1) & mask
    return at


@compiled
def _find_text(slots: Array, spans: Array, heap: Array, data: Array, start: int, stop: int, key: int) -> Any:
    """Returns the slot of a text, or the free slot where it belongs."""
    mask = len(slots) - 1
    at = np.int64(_mix(key)) & mask
    while slots[at, 1] != 0:
        if slots[at, 1] < 0 and slots[at, 0] == key:
            stored, length = spans[-slots[at, 1] - 1, 0], spans[-slots[at, 1] - 1, 1] - spans[-slots[at, 1] - 1, 0]
            same = length == stop - start
            k = 0
            while same and k < length:
                same = heap[stored + k] == data[start + k]
                k += 1
            if same:
                break
        at = (at + 1) & mask
    return at


_SKIPPED, _MISSING, _INTEGER, _TEXT = range(4)


@compiled
def _hash_rows(data: Array, start: Array, stop: Array, status: Array, key: Array, kind: Array) -> None:
    """Computes all keys before the lookups: the short lookup loop then overlaps many cache misses."""
    for row in range(len(status)):
        if status[row] != VALID:
            kind[row] = _SKIPPED
        elif stop[row] <= start[row]:
            kind[row] = _MISSING  # an optional value
        else:
            whole, value = _parse_integer(data, start[row], stop[row])
            kind[row] = _INTEGER if whole else _TEXT
            key[row] = value if whole else _hash_text(data, start[row], stop[row])


@compiled
def _encode_texts(
    data: Array,
    start: Array,
    stop: Array,
    key: Array,
    kind: Array,
    status: Array,
    bad_column: Array,
    out: Array,
    unique: int,
    row: int,
    slots: Array,
    spans: Array,
    heap: Array,
    used: Array,
) -> int:
    """Encodes from `row` on; returns the row before which the table must grow, or the number of rows."""
    while row < len(status):
        if kind[row] == _INTEGER:
            at = _find_integer(slots, key[row])
        elif kind[row] == _TEXT:
            at = _find_text(slots, spans, heap, data, start[row], stop[row], key[row])
        else:
            if kind[row] == _MISSING:
                out[row] = -1
            row += 1
            continue
        if slots[at, 1] != 0:
            out[row] = abs(slots[at, 1]) - 1
            if unique >= 0:
                status[row], bad_column[row] = DUPLICATE_EVENT_ID, unique
            row += 1
            continue
        count, length = used[0], stop[row] - start[row]
        if 2 * (count + 1) > len(slots) or count + 1 > len(spans) or used[1] + length > len(heap):
            return row
        if kind[row] == _INTEGER:
            spans[count, 0], spans[count, 1] = key[row], -1
        else:
            heap[used[1] : used[1] + length] = data[start[row] : stop[row]]
            spans[count, 0], spans[count, 1] = used[1], used[1] + length
            used[1] += length
        slots[at, 0], slots[at, 1] = key[row], count + 1 if kind[row] == _INTEGER else -(count + 1)
        out[row] = count
        used[0] = count + 1
        row += 1
    return row


@compiled
def _encode_integers(
    values: Array,
    status: Array,
    bad_column: Array,
    out: Array,
    unique: int,
    row: int,
    slots: Array,
    spans: Array,
    used: Array,
) -> int:
    while row < len(status):
        if status[row] == VALID:
            at = _find_integer(slots, values[row])
            if slots[at, 1] == 0:
                count = used[0]
                if 2 * (count + 1) > len(slots) or count + 1 > len(spans):
                    return row
                spans[count, 0], spans[count, 1] = values[row], -1
                slots[at, 0], slots[at, 1] = values[row], count + 1
                used[0] = count + 1
            elif unique >= 0:
                status[row], bad_column[row] = DUPLICATE_EVENT_ID, unique
            out[row] = slots[at, 1] - 1
        row += 1
    return row


@compiled
def _mark_integers(values: Array, slots: Array, found: Array) -> None:
    for value in values:
        at = _find_integer(slots, value)
        if slots[at, 1] != 0:
            found[slots[at, 1] - 1] = True


@compiled
def _mark_texts(data: Array, offsets: Array, slots: Array, spans: Array, heap: Array, found: Array) -> None:
    for row in range(len(offsets) - 1):
        start, stop = offsets[row], offsets[row + 1]
        whole, value = _parse_integer(data, start, stop)
        if whole:
            at = _find_integer(slots, value)
        else:
            at = _find_text(slots, spans, heap, data, start, stop, _hash_text(data, start, stop))
        if slots[at, 1] != 0:
            found[abs(slots[at, 1]) - 1] = True


@compiled
def _rehash(old: Array, new: Array) -> None:
    """Copies all entries into a larger, empty table."""
    mask = len(new) - 1
    for k in range(len(old)):
        if old[k, 1] != 0:
            at = np.int64(_mix(old[k, 0])) & mask
            while new[at, 1] != 0:
                at = (at + 1) & mask
            new[at, 0], new[at, 1] = old[k, 0], old[k, 1]


@compiled
def _text_lengths(spans: Array) -> Array:
    """Returns the length of each id as text; integers in decimal."""
    lengths = np.empty(len(spans), np.int64)
    for k in range(len(spans)):
        if spans[k, 1] >= 0:
            lengths[k] = spans[k, 1] - spans[k, 0]
            continue
        value, length = spans[k, 0], 1 if spans[k, 0] >= 0 else 2
        while abs(value) >= 10:
            value, length = abs(value) // 10, length + 1
        lengths[k] = length
    return lengths


@compiled
def _write_texts(spans: Array, heap: Array, offsets: Array, out: Array) -> None:
    """Writes every id as text to out[offsets[k]:offsets[k + 1]]; integers in decimal."""
    for k in range(len(spans)):
        a, b = offsets[k], offsets[k + 1]
        if spans[k, 1] >= 0:
            out[a:b] = heap[spans[k, 0] : spans[k, 1]]
            continue
        value = abs(spans[k, 0])
        for at in range(b - 1, a - 1, -1):
            out[at] = 48 + value % 10
            value //= 10
        if spans[k, 0] < 0:
            out[a] = 45
