"""Sort columns on disk by time, stably, in bounded memory.

A bucket sort in two passes over the files: rows are first dealt into buckets of neighbouring times, each small
enough to sort in memory, then the buckets are sorted one after the other. A time so common that it would fill a
bucket gets one to itself, which needs no sorting: that is what keeps memory bounded whatever the times are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

PIECE_ROWS = 1 << 20
BUCKET_BYTES = 256 << 20


@dataclass(frozen=True)
class RawColumn:
    """A column in a file: fixed-size rows after `skip` bytes."""

    path: Path
    dtype: np.dtype[Any]
    width: int | None
    skip: int = 0

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * (self.width or 1)

    def read(self, start: int, stop: int) -> Array:
        rows = np.fromfile(
            self.path, self.dtype, (stop - start) * (self.width or 1), offset=self.skip + start * self.row_bytes
        )
        return rows if self.width is None else rows.reshape(stop - start, self.width)


def in_time_order(columns: dict[str, RawColumn], rows: int, scratch: Path) -> Iterator[dict[str, Array]]:
    """Pieces of all columns, sorted by the column "time", equal times in the order they have in the files."""
    row_bytes = sum(column.row_bytes for column in columns.values())
    bucket_rows = max(BUCKET_BYTES // row_bytes, 1)
    pivots = _pivots(columns["time"], rows, -(-rows // bucket_rows))
    ends = np.cumsum(_bucket_sizes(columns["time"], rows, pivots))
    dealt = _deal(columns, rows, pivots, ends, scratch)
    start = 0
    for bucket, end in enumerate(ends.tolist()):
        if bucket % 2:  # one single time: in order already, however many rows
            for at in range(start, end, PIECE_ROWS):
                yield {name: column.read(at, min(at + PIECE_ROWS, end)) for name, column in dealt.items()}
        elif end > start:
            piece = {name: column.read(start, end) for name, column in dealt.items()}
            order = stable_order(piece["time"])
            yield {name: values[order] for name, values in piece.items()}
        start = end


def _pivots(time: RawColumn, rows: int, buckets: int) -> Array:
    """Times that part the rows into about equal buckets, from an even sample of every piece."""
    if buckets <= 1:
        return np.empty(0)
    every = max(rows // (1000 * buckets), 1)
    sample = np.sort(np.concatenate([time.read(a, b)[::every] for a, b in _pieces(rows)]))
    return np.unique(sample[np.linspace(0, len(sample) - 1, 2 * buckets + 1).astype(np.int64)[1:-1]])


def _pieces(rows: int) -> Iterator[tuple[int, int]]:
    for start in range(0, rows, PIECE_ROWS):
        yield start, min(start + PIECE_ROWS, rows)


@compiled
def _buckets(time: Array, pivots: Array) -> Array:
    """Even buckets lie between two pivots, odd ones hold a pivot's own time. Pivots are few: no search needed."""
    bucket = np.zeros(len(time), np.int32)
    for pivot in pivots:
        for row in range(len(time)):
            bucket[row] += np.int32(time[row] > pivot) + np.int32(time[row] >= pivot)
    return bucket


def _bucket_sizes(time: RawColumn, rows: int, pivots: Array) -> Array:
    sizes = np.zeros(2 * len(pivots) + 1, np.int64)
    for a, b in _pieces(rows):
        sizes += np.bincount(_buckets(time.read(a, b), pivots), minlength=len(sizes))
    return sizes


def _deal(
    columns: dict[str, RawColumn], rows: int, pivots: Array, ends: Array, scratch: Path
) -> dict[str, RawColumn]:
    """Every row into its bucket's stretch of a new file. The old files are removed as soon as they are dealt."""
    if not len(pivots):
        return columns
    dealt = {
        name: RawColumn(scratch / f"{name}.dealt", column.dtype, column.width) for name, column in columns.items()
    }
    files = {name: os.open(column.path, os.O_WRONLY | os.O_CREAT, 0o666) for name, column in dealt.items()}
    next_row = np.concatenate(([0], ends[:-1]))
    try:
        for a, b in _pieces(rows):
            piece = {name: column.read(a, b) for name, column in columns.items()}
            bucket = _buckets(piece["time"], pivots)
            order, counts = _by_bucket(bucket, len(ends))
            for name, values in piece.items():
                _write_runs(files[name], values[order], counts, next_row * dealt[name].row_bytes)
            next_row = next_row + counts
    finally:
        for file in files.values():
            os.close(file)
    for column in columns.values():
        column.path.unlink()
    return dealt


def _write_runs(file: int, values: Array, counts: Array, places: Array) -> None:
    raw = values.reshape(len(values), -1).view(np.uint8)
    start = 0
    for count, place in zip(counts.tolist(), places.tolist(), strict=True):
        run = memoryview(raw[start : start + count].reshape(-1).data)
        while run:
            wrote = os.pwrite(file, run, place)
            run, place = run[wrote:], place + wrote  # noqa: PLW2901
        start += count


@compiled
def _by_bucket(bucket: Array, buckets: int) -> tuple[Array, Array]:
    """A stable counting sort: (row numbers by bucket, rows of each bucket)."""
    counts = np.zeros(buckets, np.int64)
    for b in bucket:
        counts[b] += 1
    place = np.cumsum(counts) - counts
    order = np.empty(len(bucket), np.int64)
    for row in range(len(bucket)):
        order[place[bucket[row]]] = row
        place[bucket[row]] += 1
    return order, counts


def stable_order(time: Array) -> Array:
    """Row numbers by time, equal times in row order: a radix sort over the bits that differ."""
    key = np.ascontiguousarray(time, np.float64) + 0.0  # -0.0 becomes 0.0; times are never negative
    return _radix_order(key.view(np.uint64))


@compiled
def _radix_order(key: Array) -> Array:
    rows = len(key)
    order, other = np.arange(rows).astype(np.uint32), np.empty(rows, np.uint32)
    key_here, key_other = key.copy(), np.empty(rows, np.uint64)
    differ = np.uint64(0)
    for row in range(1, rows):
        differ |= key[row] ^ key[0]
    digit = np.uint64(2047)  # 11 bits a pass: the counters stay in the first-level cache
    shift = np.uint64(0)
    while shift < np.uint64(64):
        if (differ >> shift) & digit == np.uint64(0):
            shift += np.uint64(1)
            continue
        place = np.zeros(2049, np.int64)
        for row in range(rows):
            place[np.int64((key_here[row] >> shift) & digit) + 1] += 1
        place = np.cumsum(place)
        for row in range(rows):
            d = np.int64((key_here[row] >> shift) & digit)
            other[place[d]], key_other[place[d]] = order[row], key_here[row]
            place[d] += 1
        order, other, key_here, key_other = other, order, key_other, key_here
        shift += np.uint64(11)
    return order
