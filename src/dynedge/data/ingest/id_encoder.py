"""Own ids become dense ids 0, 1, 2, … in the order in which they are first met.

One open-addressing hash table for integers and texts alike. A text that is the plain decimal form of a 64-bit
integer is kept as that integer, so "42" and 42 are one id, while "042" is another. If every id of a column is such
an integer they are given back as integers, else all as strings, exactly as they were written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynedge.data.id_index import IdIndex
from dynedge.data.ingest.parsers import DUPLICATE, GOOD
from dynedge.errors import DataError
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

MOST = 2**31 - 1


class IdTable:
    def __init__(self) -> None:
        self._slots = np.zeros((1 << 12, 2), np.int64)  # (key, dense + 1); a text's number is negative; 0: free
        self._spans = np.zeros((1 << 10, 2), np.int64)  # by dense id: (integer, -1) or (start, stop) in the heap
        self._heap = np.zeros(1 << 14, np.uint8)
        self._used = np.zeros(2, np.int64)  # dense ids, heap bytes

    def __len__(self) -> int:
        return int(self._used[0])

    def encode_texts(
        self, data: Array, start: Array, stop: Array, status: Array, where: Array, out: Array, unique: int = -1
    ) -> None:
        """Dense ids of the good rows, into `out`. With `unique` (a column's number) a repeat marks its row as bad."""
        key, kind = np.empty(len(status), np.int64), np.empty(len(status), np.uint8)
        _keys(data, start, stop, status, key, kind)
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
                where,
                out,
                unique,
                row,
                self._slots,
                self._spans,
                self._heap,
                self._used,
            )

    def encode_numbers(self, values: Array, status: Array, where: Array, out: Array, unique: int = -1) -> None:
        row = 0
        while row < len(status):
            self._grow(0)
            row = _encode_numbers(values, status, where, out, unique, row, self._slots, self._spans, self._used)

    def _grow(self, text: int) -> None:
        """Make room for at least one more id, with a text of so many bytes."""
        count, heap = int(self._used[0]), int(self._used[1])
        if count >= MOST - 1:
            raise DataError(f"a column has more than {MOST} different ids; dynedge keeps them as 32-bit integers.")
        if count + 1 > len(self._spans):
            self._spans = np.resize(self._spans, (2 * len(self._spans), 2))
        if heap + text > len(self._heap):
            self._heap = np.resize(self._heap, 2 * (heap + text))
        if 2 * (count + 1) > len(self._slots):
            slots = np.zeros((4 * len(self._slots), 2), np.int64)
            _move(self._slots, slots)
            self._slots = slots

    def ids(self, order: Array | None = None) -> IdIndex:
        """The own ids, in dense order or in the order given (dense ids)."""
        spans = self._spans[: len(self)] if order is None else self._spans[order]
        if not len(spans) or (spans[:, 1] == -1).all():
            return IdIndex(spans[:, 0].copy())
        lengths = _lengths(spans)
        offsets = np.zeros(len(spans) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        heap = np.empty(int(offsets[-1]), np.uint8)
        _write(spans, self._heap, offsets, heap)
        return IdIndex(heap, offsets)


@compiled
def _mix(key: int) -> np.uint64:
    """Spread a key over the table (a 64-bit finalizer: multiply, shift, multiply)."""
    x = np.uint64(key)
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return x ^ (x >> np.uint64(32))


@compiled
def _integer(data: Array, start: int, stop: int) -> tuple[bool, Any]:
    """Is this text the plain decimal form of a 64-bit integer, and which? No +, no leading zeros, no -0."""
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
    if value > np.uint64(2**63 - 1):  # -2^63 itself is kept as text: harmless, and one case less
        return False, 0
    return True, -np.int64(value) if negative else np.int64(value)


@compiled
def _text_key(data: Array, start: int, stop: int) -> Any:
    x = np.uint64(0xCBF29CE484222325)
    for k in range(start, stop):
        x = (x ^ np.uint64(data[k])) * np.uint64(0x100000001B3)
    return np.int64(x)


@compiled
def _find_integer(slots: Array, key: int) -> Any:
    """The slot that holds this integer, or the free one where it belongs."""
    mask = len(slots) - 1
    at = np.int64(_mix(key)) & mask
    while slots[at, 1] != 0 and not (slots[at, 1] > 0 and slots[at, 0] == key):
        at = (at + 1) & mask
    return at


@compiled
def _find_text(slots: Array, spans: Array, heap: Array, data: Array, start: int, stop: int, key: int) -> Any:
    mask = len(slots) - 1
    at = np.int64(_mix(key)) & mask
    while slots[at, 1] != 0:
        if slots[at, 1] < 0 and slots[at, 0] == key:
            have, length = spans[-slots[at, 1] - 1, 0], spans[-slots[at, 1] - 1, 1] - spans[-slots[at, 1] - 1, 0]
            same = length == stop - start
            k = 0
            while same and k < length:
                same = heap[have + k] == data[start + k]
                k += 1
            if same:
                break
        at = (at + 1) & mask
    return at


_PASS, _ABSENT, _INTEGER, _TEXT = range(4)


@compiled
def _keys(data: Array, start: Array, stop: Array, status: Array, key: Array, kind: Array) -> None:
    """Keys first, look-ups after: a short look-up loop lets the processor wait for many slots at once."""
    for row in range(len(status)):
        if status[row] != GOOD:
            kind[row] = _PASS
        elif stop[row] <= start[row]:
            kind[row] = _ABSENT  # an optional value that is not there
        else:
            whole, value = _integer(data, start[row], stop[row])
            kind[row] = _INTEGER if whole else _TEXT
            key[row] = value if whole else _text_key(data, start[row], stop[row])


@compiled
def _encode_texts(
    data: Array,
    start: Array,
    stop: Array,
    key: Array,
    kind: Array,
    status: Array,
    where: Array,
    out: Array,
    unique: int,
    row: int,
    slots: Array,
    spans: Array,
    heap: Array,
    used: Array,
) -> int:
    """From `row` on; returns the row at which the table must grow first, or the number of rows."""
    while row < len(status):
        if kind[row] == _INTEGER:
            at = _find_integer(slots, key[row])
        elif kind[row] == _TEXT:
            at = _find_text(slots, spans, heap, data, start[row], stop[row], key[row])
        else:
            if kind[row] == _ABSENT:
                out[row] = -1
            row += 1
            continue
        if slots[at, 1] != 0:
            out[row] = abs(slots[at, 1]) - 1
            if unique >= 0:
                status[row], where[row] = DUPLICATE, unique
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
def _encode_numbers(
    values: Array,
    status: Array,
    where: Array,
    out: Array,
    unique: int,
    row: int,
    slots: Array,
    spans: Array,
    used: Array,
) -> int:
    while row < len(status):
        if status[row] == GOOD:
            at = _find_integer(slots, values[row])
            if slots[at, 1] == 0:
                count = used[0]
                if 2 * (count + 1) > len(slots) or count + 1 > len(spans):
                    return row
                spans[count, 0], spans[count, 1] = values[row], -1
                slots[at, 0], slots[at, 1] = values[row], count + 1
                used[0] = count + 1
            elif unique >= 0:
                status[row], where[row] = DUPLICATE, unique
            out[row] = slots[at, 1] - 1
        row += 1
    return row


@compiled
def _move(old: Array, new: Array) -> None:
    mask = len(new) - 1
    for k in range(len(old)):
        if old[k, 1] != 0:
            at = np.int64(_mix(old[k, 0])) & mask
            while new[at, 1] != 0:
                at = (at + 1) & mask
            new[at, 0], new[at, 1] = old[k, 0], old[k, 1]


@compiled
def _lengths(spans: Array) -> Array:
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
def _write(spans: Array, heap: Array, offsets: Array, out: Array) -> None:
    """Texts as they are; integers, where they stand among texts, in decimal."""
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
