"""Columns of a block of rows: one interface over text spans (CSV, JSON) and typed values (Parquet).

Every method records errors in `checks`, under the column's number, and skips rows that are rejected already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dynedge.data.ingest.id_encoder import IdEncoder
from dynedge.data.ingest.row_checks import (
    MISSING,
    NEGATIVE_TIME,
    NOT_A_NUMBER,
    NOT_AN_ID,
    NOT_FINITE,
    NOT_ISO,
    TIME_TOO_LATE,
    VALID,
    WRONG_LIST_LENGTH,
    RowChecks,
)
from dynedge.data.ingest.time_parser import ISO, parse_times
from dynedge.data.ingest.value_parsers import check_texts, parse_list, parse_lists, parse_numbers
from dynedge.data.timestamps import LATEST_TIME
from dynedge.utils.array_type import Array


class ColumnValues(Protocol):
    """The values of one column of a block."""

    def check_ids(self, checks: RowChecks, column: int, required: bool) -> None: ...
    def encode_ids(self, encoder: IdEncoder, checks: RowChecks, out: Array, unique: int = -1) -> None: ...
    def parse_numbers(self, checks: RowChecks, column: int, out: Array) -> None: ...
    def parse_lists(self, checks: RowChecks, column: int, out: Array) -> None: ...
    def parse_times(self, checks: RowChecks, column: int, unit: int, out: Array) -> None: ...
    def text(self, row: int) -> str: ...
    def list_length(self, row: int) -> int | None: ...


@dataclass
class TextColumn:
    """Text fields as spans of a byte array; stop < start marks a missing field."""

    data: Array
    start: Array
    stop: Array

    def check_ids(self, checks: RowChecks, column: int, required: bool) -> None:
        check_texts(self.data, self.start, self.stop, checks.status, checks.bad_column, column, required)

    def encode_ids(self, encoder: IdEncoder, checks: RowChecks, out: Array, unique: int = -1) -> None:
        encoder.encode_texts(self.data, self.start, self.stop, checks.status, checks.bad_column, out, unique)

    def parse_numbers(self, checks: RowChecks, column: int, out: Array) -> None:
        parse_numbers(self.data, self.start, self.stop, checks.status, checks.bad_column, column, out)

    def parse_lists(self, checks: RowChecks, column: int, out: Array) -> None:
        parse_lists(self.data, self.start, self.stop, checks.status, checks.bad_column, column, out)

    def parse_times(self, checks: RowChecks, column: int, unit: int, out: Array) -> None:
        parse_times(self.data, self.start, self.stop, checks.status, checks.bad_column, column, unit, out)

    def text(self, row: int) -> str:
        span = self.data[self.start[row] : max(self.stop[row], self.start[row])]
        return bytes(span).decode(errors="backslashreplace")

    def list_length(self, row: int) -> int | None:
        """Returns the number of values of a packed list, or None if the field is not a list."""
        count, error = parse_list(self.data, self.start[row], self.stop[row], np.empty(0, np.float32))
        packed = error == VALID and (count > 1 or self.text(row).startswith("["))
        return count if packed else None


def to_seconds(values: Array, unit: int) -> Array:
    """Converts units of 10^-unit seconds to seconds. Integers that float64 cannot hold, nanoseconds, are split."""
    per_second = 10**unit
    seconds = values / per_second
    if values.dtype == np.int64 and (large := np.abs(values) >= 2**53).any():
        seconds[large] = values[large] // per_second + (values[large] % per_second) / per_second
    return seconds


@dataclass
class NumberColumn:
    """Typed numbers, int64 or float64; `in_seconds` for times that are in seconds already."""

    values: Array
    missing: Array  # bool[rows]
    in_seconds: bool = False
    source_text: Callable[[int], str] | None = None  # a row's value as the file has it

    def check_ids(self, checks: RowChecks, column: int, required: bool) -> None:
        if self.values.dtype == np.float64:  # integers stored as floats, or not ids at all
            missing = self.missing | np.isnan(self.values)
            whole = np.isfinite(self.values) & (np.abs(self.values) < 2**53)
            whole[whole] = self.values[whole] == np.rint(self.values[whole])
            checks.reject(~missing & ~whole, NOT_AN_ID, column)
        else:
            missing = self.missing
        if required:
            checks.reject(missing, MISSING, column)

    def encode_ids(self, encoder: IdEncoder, checks: RowChecks, out: Array, unique: int = -1) -> None:
        missing = self.missing | (np.isnan(self.values) if self.values.dtype == np.float64 else False)
        integers = np.where(missing, 0, self.values).astype(np.int64)
        if not missing.any():
            return encoder.encode_integers(integers, checks.status, checks.bad_column, out, unique)
        status = np.where(missing, np.uint8(MISSING), checks.status)  # missing optional values
        encoder.encode_integers(integers, status, checks.bad_column, out, unique)
        checks.status[~missing] = status[~missing]  # with what `unique` has rejected
        out[missing] = -1

    def parse_numbers(self, checks: RowChecks, column: int, out: Array) -> None:
        checks.reject(self.missing, MISSING, column)
        checks.reject(~np.isfinite(self.values), NOT_FINITE, column)
        valid = checks.valid
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which the caller rejects
            out[valid] = self.values[valid]

    def parse_lists(self, checks: RowChecks, column: int, out: Array) -> None:
        self.parse_numbers(checks, column, out[:, 0])
        checks.reject(np.full(len(out), out.shape[1] != 1), WRONG_LIST_LENGTH, column)

    def parse_times(self, checks: RowChecks, column: int, unit: int, out: Array) -> None:
        checks.reject(self.missing, MISSING, column)
        checks.reject(np.full(len(out), unit == ISO and not self.in_seconds), NOT_ISO, column)
        seconds = self.values if self.in_seconds else to_seconds(self.values, max(unit, 0))
        checks.reject(~np.isfinite(seconds), NOT_FINITE, column)
        checks.reject(seconds < 0, NEGATIVE_TIME, column)
        checks.reject(seconds > LATEST_TIME, TIME_TOO_LATE, column)
        valid = checks.valid
        out[valid] = seconds[valid]

    def text(self, row: int) -> str:
        if self.source_text:
            return self.source_text(row)
        return "" if self.missing[row] else str(self.values[row].item())

    def list_length(self, row: int) -> int | None:
        return None


@dataclass
class ListColumn:
    """A list of numbers per row: flat[offset[k]:offset[k + 1]] in row k."""

    flat: Array  # float64
    offset: Array  # int64[rows + 1]
    missing: Array  # bool[rows]
    source_text: Callable[[int], str] | None = None  # a row's value as the file has it

    def check_ids(self, checks: RowChecks, column: int, required: bool) -> None:
        checks.reject(np.ones(len(self.missing), bool), NOT_AN_ID, column)

    def encode_ids(self, encoder: IdEncoder, checks: RowChecks, out: Array, unique: int = -1) -> None:
        assert not checks.valid.any(), "check_ids rejects every row of a list column"

    def parse_numbers(self, checks: RowChecks, column: int, out: Array) -> None:
        checks.reject(self.missing, MISSING, column)
        checks.reject(np.ones(len(self.missing), bool), NOT_A_NUMBER, column)

    def parse_lists(self, checks: RowChecks, column: int, out: Array) -> None:
        checks.reject(self.missing, MISSING, column)
        checks.reject(np.diff(self.offset) != out.shape[1], WRONG_LIST_LENGTH, column)
        valid = np.flatnonzero(checks.valid)
        lists = self.flat[self.offset[valid][:, None] + np.arange(out.shape[1])]
        not_finite = np.zeros(len(self.missing), bool)
        not_finite[valid] = ~np.isfinite(lists).all(axis=1)
        checks.reject(not_finite, NOT_FINITE, column)
        with np.errstate(over="ignore"):
            out[valid] = lists

    def parse_times(self, checks: RowChecks, column: int, unit: int, out: Array) -> None:
        checks.reject(np.ones(len(self.missing), bool), NOT_A_NUMBER, column)

    def text(self, row: int) -> str:
        if self.source_text:
            return self.source_text(row)
        return "" if self.missing[row] else str(self.flat[self.offset[row] : self.offset[row + 1]].tolist())

    def list_length(self, row: int) -> int | None:
        return int(self.offset[row + 1] - self.offset[row])
