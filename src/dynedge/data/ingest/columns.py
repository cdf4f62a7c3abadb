"""A column of a block of rows, whatever file it came from: the same five verbs on text and on typed values.

Every verb marks what is wrong in `status` (a code of values.py) and `where` (the column's number) and passes over
rows that are marked already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dynedge.data.ingest import parsers as v
from dynedge.data.ingest.id_encoder import IdTable
from dynedge.utils.arrays import Array


@dataclass
class Marks:
    """What is wrong with each row of a block, and in which column."""

    status: Array  # uint8[rows]
    where: Array  # int32[rows]; -1: the row as a whole

    @classmethod
    def of(cls, status: Array) -> Marks:
        return cls(status, np.full(len(status), -1, np.int32))

    def mark(self, rows: Array, code: int, column: int) -> None:
        """Mark those of `rows` (a mask) that are still good."""
        fresh = rows & (self.status == v.GOOD)
        self.status[fresh], self.where[fresh] = code, column


class ColumnValues(Protocol):
    def check_ids(self, marks: Marks, column: int, needed: bool) -> None: ...
    def encode(self, table: IdTable, marks: Marks, out: Array, unique: int = -1) -> None: ...
    def numbers(self, marks: Marks, column: int, out: Array) -> None: ...
    def lists(self, marks: Marks, column: int, out: Array) -> None: ...
    def times(self, marks: Marks, column: int, unit: int, out: Array) -> None: ...
    def text(self, row: int) -> str: ...
    def list_width(self, row: int) -> int | None: ...


@dataclass
class TextColumn:
    """Spans of bytes. stop < start: not there."""

    data: Array
    start: Array
    stop: Array

    def check_ids(self, marks: Marks, column: int, needed: bool) -> None:
        v.check_texts(self.data, self.start, self.stop, marks.status, marks.where, column, needed)

    def encode(self, table: IdTable, marks: Marks, out: Array, unique: int = -1) -> None:
        table.encode_texts(self.data, self.start, self.stop, marks.status, marks.where, out, unique)

    def numbers(self, marks: Marks, column: int, out: Array) -> None:
        v.parse_numbers(self.data, self.start, self.stop, marks.status, marks.where, column, out)

    def lists(self, marks: Marks, column: int, out: Array) -> None:
        v.parse_lists(self.data, self.start, self.stop, marks.status, marks.where, column, out)

    def times(self, marks: Marks, column: int, unit: int, out: Array) -> None:
        v.parse_times(self.data, self.start, self.stop, marks.status, marks.where, column, unit, out)

    def text(self, row: int) -> str:
        return bytes(self.data[self.start[row] : max(self.stop[row], self.start[row])]).decode(
            errors="backslashreplace"
        )

    def list_width(self, row: int) -> int | None:
        """How many numbers a packed list here holds; None if this is no list."""
        count, bad = v.parse_list(self.data, self.start[row], self.stop[row], np.empty(0, np.float32))
        packed = bad == v.GOOD and (count > 1 or self.text(row).startswith("["))
        return count if packed else None


def to_seconds(values: Array, unit: int) -> Array:
    """Numbers in units of 10^-unit seconds. Whole numbers are parted first: nanoseconds do not fit a float64."""
    ten = 10**unit
    if values.dtype == np.int64:
        return values // ten + (values % ten) / ten
    return values / ten


@dataclass
class NumberColumn:
    """Typed numbers, int64 or float64. `seconds` says that they are times in seconds already."""

    values: Array
    missing: Array  # bool[rows]
    seconds: bool = False

    def check_ids(self, marks: Marks, column: int, needed: bool) -> None:
        if self.values.dtype == np.float64:  # integers that went through a float column, or no ids at all
            absent = self.missing | np.isnan(self.values)
            whole = np.isfinite(self.values) & (np.abs(self.values) < 2**53)
            whole[whole] = self.values[whole] == np.rint(self.values[whole])
            marks.mark(~absent & ~whole, v.NOT_AN_ID, column)
        else:
            absent = self.missing
        if needed:
            marks.mark(absent, v.MISSING, column)

    def encode(self, table: IdTable, marks: Marks, out: Array, unique: int = -1) -> None:
        absent = self.missing | (np.isnan(self.values) if self.values.dtype == np.float64 else False)
        whole = np.where(absent, 0, self.values).astype(np.int64)
        if not absent.any():
            return table.encode_numbers(whole, marks.status, marks.where, out, unique)
        status = np.where(absent, np.uint8(v.MISSING), marks.status)  # optional values that are not there
        table.encode_numbers(whole, status, marks.where, out, unique)
        out[absent] = -1

    def numbers(self, marks: Marks, column: int, out: Array) -> None:
        marks.mark(self.missing, v.MISSING, column)
        marks.mark(~np.isfinite(self.values), v.NOT_FINITE, column)
        good = marks.status == v.GOOD
        with np.errstate(over="ignore"):  # too large for a float32 becomes infinite, which the caller refuses
            out[good] = self.values[good]

    def lists(self, marks: Marks, column: int, out: Array) -> None:
        self.numbers(marks, column, out[:, 0])

    def times(self, marks: Marks, column: int, unit: int, out: Array) -> None:
        seconds = self.values if self.seconds or unit == v.ISO else to_seconds(self.values, unit)
        marks.mark(self.missing, v.MISSING, column)
        marks.mark(~np.isfinite(seconds), v.NOT_FINITE, column)
        marks.mark(seconds < 0, v.NEGATIVE_TIME, column)
        marks.mark(seconds > v.LATEST_S, v.ABSURD_TIME, column)
        good = marks.status == v.GOOD
        out[good] = seconds[good]

    def text(self, row: int) -> str:
        return "" if self.missing[row] else str(self.values[row].item())

    def list_width(self, row: int) -> int | None:
        return None


@dataclass
class ListColumn:
    """A list of numbers a row: `flat[offset[k]:offset[k + 1]]` is row k's."""

    flat: Array  # float64
    offset: Array  # int64[rows + 1]
    missing: Array

    def check_ids(self, marks: Marks, column: int, needed: bool) -> None:
        marks.mark(np.ones(len(self.missing), bool), v.NOT_AN_ID, column)

    def encode(self, table: IdTable, marks: Marks, out: Array, unique: int = -1) -> None:
        assert not (marks.status == v.GOOD).any(), "check_ids marks every row of a list column"

    def numbers(self, marks: Marks, column: int, out: Array) -> None:
        marks.mark(np.ones(len(self.missing), bool), v.UNPARSABLE, column)

    def lists(self, marks: Marks, column: int, out: Array) -> None:
        marks.mark(self.missing, v.MISSING, column)
        marks.mark(np.diff(self.offset) != out.shape[1], v.WIDTH, column)
        good = np.flatnonzero(marks.status == v.GOOD)
        rows = self.flat[self.offset[good][:, None] + np.arange(out.shape[1])]
        odd = np.zeros(len(self.missing), bool)
        odd[good] = ~np.isfinite(rows).all(axis=1)
        marks.mark(odd, v.NOT_FINITE, column)
        with np.errstate(over="ignore"):
            out[good] = rows

    def times(self, marks: Marks, column: int, unit: int, out: Array) -> None:
        marks.mark(np.ones(len(self.missing), bool), v.UNPARSABLE, column)

    def text(self, row: int) -> str:
        return str(self.flat[self.offset[row] : self.offset[row + 1]].tolist())

    def list_width(self, row: int) -> int | None:
        return int(self.offset[row + 1] - self.offset[row])
