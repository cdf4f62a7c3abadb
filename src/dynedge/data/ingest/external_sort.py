"""External sort: sorts columns on disk by time, stably, in bounded memory.

A bucket sort in two passes over the files: rows are first distributed into buckets of neighbouring times, each small
enough to sort in memory, then the buckets are sorted one after the other. A time so frequent that it would fill a
bucket gets a bucket of its own, which needs no sorting; this bounds the memory for any distribution of times.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

CHUNK_ROWS = 1 << 20
BUCKET_BYTES = 256 << 20


@dataclass(frozen=True)
class ColumnFile:
    """A column in a file: rows of fixed size after a header."""

    path: Path
    dtype: np.dtype[Any]
    width: int | None
    header_bytes: int = 0

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * (self.width or 1)

    def read(self, start: int, stop: int) -> Array:
        """Returns rows start … stop − 1."""
        values = np.fromfile(
            self.path,
            self.dtype,
            (stop - start) * (self.width or 1),
            offset=self.header_bytes + start * self.row_bytes,
        )
        return values if self.width is None else values.reshape(stop - start, self.width)


def sorted_chunks(columns: dict[str, ColumnFile], rows: int, scratch: Path) -> Iterator[dict[str, Array]]:
    """Yields chunks of all columns, sorted by the column "time"; equal times keep their order in the files."""
    row_bytes = sum(column.row_bytes for column in columns.values())
    bucket_rows = max(BUCKET_BYTES // row_bytes, 1)
    pivots = _choose_pivots(columns["time"], rows, -(-rows // bucket_rows))
    ends = np.cumsum(_bucket_sizes(columns["time"], rows, pivots))
    buckets = _distribute(columns, rows, pivots, ends, scratch)
    start = 0
    for bucket, end in enumerate(ends.tolist()):
        if bucket % 2:  # a single time: in order already, however many rows
            for at in range(start, end, CHUNK_ROWS):
                yield {name: column.read(at, min(at + CHUNK_ROWS, end)) for name, column in buckets.items()}
        elif end > start:
            chunk = {name: column.read(start, end) for name, column in buckets.items()}
            order = stable_argsort(chunk["time"])
            yield {name: values[order] for name, values in chunk.items()}
        start = end


def _choose_pivots(time: ColumnFile, rows: int, buckets: int) -> Array:
    """Returns times that divide the rows into about equal buckets, from an even sample of every chunk."""
    if buckets <= 1:
        return np.empty(0)
    every = max(rows // (1000 * buckets), 1)
    sample = np.sort(np.concatenate([time.read(a, b)[::every] for a, b in _chunks(rows)]))
    return np.unique(sample[np.linspace(0, len(sample) - 1, 2 * buckets + 1).astype(np.int64)[1:-1]])


def _chunks(rows: int) -> Iterator[tuple[int, int]]:
    for start in range(0, rows, CHUNK_ROWS):
        yield start, min(start + CHUNK_ROWS, rows)


@compiled
def _bucket_of(time: Array, pivots: Array) -> Array:
    """Returns each row's bucket: even ones lie between two pivots, odd ones hold the time of a pivot.

    There are few pivots: comparing with all of them is faster than a search.
    """
    bucket = np.zeros(len(time), np.int32)
    for pivot in pivots:
        for row in range(len(time)):
            bucket[row] += np.int32(time[row] > pivot) + np.int32(time[row] >= pivot)
    return bucket


def _bucket_sizes(time: ColumnFile, rows: int, pivots: Array) -> Array:
    sizes = np.zeros(2 * len(pivots) + 1, np.int64)
    for a, b in _chunks(rows):
        sizes += np.bincount(_bucket_of(time.read(a, b), pivots), minlength=len(sizes))
    return sizes


def _distribute(
    columns: dict[str, ColumnFile], rows: int, pivots: Array, ends: Array, scratch: Path
) -> dict[str, ColumnFile]:
    """Copies every row into its bucket's range of a new file, then removes the old files."""
    if not len(pivots):
        return columns
    buckets = {
        name: ColumnFile(scratch / f"{name}.buckets", column.dtype, column.width) for name, column in columns.items()
    }
    files = {name: os.open(column.path, os.O_WRONLY | os.O_CREAT, 0o666) for name, column in buckets.items()}
    next_row = np.concatenate(([0], ends[:-1]))
    try:
        for a, b in _chunks(rows):
            chunk = {name: column.read(a, b) for name, column in columns.items()}
            bucket = _bucket_of(chunk["time"], pivots)
            order, counts = _counting_sort(bucket, len(ends))
            for name, values in chunk.items():
                _write_runs(files[name], values[order], counts, next_row * buckets[name].row_bytes)
            next_row = next_row + counts
    finally:
        for file in files.values():
            os.close(file)
    for column in columns.values():
        column.path.unlink()
    return buckets


def _write_runs(file: int, values: Array, counts: Array, positions: Array) -> None:
    """Writes consecutive runs of `counts` rows, each at its own byte position."""
    raw = values.reshape(len(values), -1).view(np.uint8)
    start = 0
    for count, position in zip(counts.tolist(), positions.tolist(), strict=True):
        run = memoryview(raw[start : start + count].reshape(-1).data)
        while run:
            written = os.pwrite(file, run, position)
            run, position = run[written:], position + written  # noqa: PLW2901
        start += count


@compiled
def _counting_sort(bucket: Array, buckets: int) -> tuple[Array, Array]:
    """Returns (row numbers by bucket, in stable order; rows of each bucket)."""
    counts = np.zeros(buckets, np.int64)
    for b in bucket:
        counts[b] += 1
    position = np.cumsum(counts) - counts
    order = np.empty(len(bucket), np.int64)
    for row in range(len(bucket)):
        order[position[bucket[row]]] = row
        position[bucket[row]] += 1
    return order, counts


def stable_argsort(time: Array) -> Array:
    """Returns row numbers by time, equal times in row order: a radix sort over the bits that differ."""
    key = np.ascontiguousarray(time, np.float64) + 0.0  # -0.0 becomes 0.0; times are never negative
    return _radix_argsort(key.view(np.uint64))


@compiled
def _radix_argsort(key: Array) -> Array:
    rows = len(key)
    order, next_order = np.arange(rows).astype(np.uint32), np.empty(rows, np.uint32)
    keys, next_keys = key.copy(), np.empty(rows, np.uint64)
    differ = np.uint64(0)
    for row in range(1, rows):
        differ |= key[row] ^ key[0]
    digit = np.uint64(2047)  # 11 bits per pass: the counters stay in the L1 cache
    shift = np.uint64(0)
    while shift < np.uint64(64):
        if (differ >> shift) & digit == np.uint64(0):
            shift += np.uint64(1)
            continue
        position = np.zeros(2049, np.int64)
        for row in range(rows):
            position[np.int64((keys[row] >> shift) & digit) + 1] += 1
        position = np.cumsum(position)
        for row in range(rows):
            d = np.int64((keys[row] >> shift) & digit)
            next_order[position[d]], next_keys[position[d]] = order[row], keys[row]
            position[d] += 1
        order, next_order, keys, next_keys = next_order, order, next_keys, keys
        shift += np.uint64(11)
    return order
