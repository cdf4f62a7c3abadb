"""Reads input files as blocks of rows: delimited text, JSON lines and Parquet, plain or compressed."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dynedge.data.ingest.block_columns import ColumnValues, NumberColumn
from dynedge.data.ingest.parquet_reader import FrameInput, parquet_blocks, parquet_columns, table_blocks
from dynedge.data.ingest.row_checks import RowChecks
from dynedge.data.ingest.schema import Block, Schema
from dynedge.data.ingest.text_reader import text_blocks, text_columns
from dynedge.data.ingest.time_parser import is_iso_time
from dynedge.data.ingest.value_parsers import number_or_none
from dynedge.errors import DataError, UsageError
from dynedge.utils.array_type import Array
from dynedge.utils.prefetch import prefetch

UNIT_SAMPLE = 2000  # rows from which the time unit is inferred


def expand_paths(patterns: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Returns the files that paths and globs name; DataError for one that names none."""
    files: list[Path] = []
    for given in patterns:
        pattern = os.fspath(given)
        path = Path(pattern)
        if path.is_dir():
            raise DataError(
                f"{pattern} is a folder; name the files in it, for example '{pattern.rstrip('/')}/*.csv'."
            )
        if path.exists():
            if not path.is_file():
                raise DataError(f"{pattern} is a pipe or a device; write its content to a file first.")
            files.append(path)
        elif any(letter in pattern for letter in "*?["):
            matches = sorted(glob.glob(pattern, recursive=True))
            if not matches:
                raise DataError(f"no file matches {pattern!r}.")
            files += [Path(match) for match in matches if not os.path.isdir(match)]
        else:
            raise DataError(f"{pattern} does not exist.")
    if not files:
        raise UsageError("name at least one file to prepare.")
    return files


def input_bytes(path: Path | FrameInput) -> int:
    """The size of a file or a frame."""
    return int(path.table.nbytes) if isinstance(path, FrameInput) else path.stat().st_size


def read_blocks(path: Path | FrameInput, schema: Schema) -> Iterator[Block]:
    """Returns the rows of an input in order, as blocks; reading and tokenizing run ahead in background threads."""
    if isinstance(path, FrameInput):
        return prefetch(table_blocks(path, schema))
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    if magic == b"PAR1":
        return prefetch(parquet_blocks(path, schema))
    return prefetch(text_blocks(path, schema, magic))


def unused_columns(path: Path | FrameInput, schema: Schema) -> list[str]:
    """The names of the columns of an input that have no role; of JSON lines, of the keys of the first object."""
    names: Sequence[str]
    if isinstance(path, FrameInput):
        names = path.table.column_names
    else:
        with open(path, "rb") as file:
            magic = file.read(4)
        names = parquet_columns(path) if magic == b"PAR1" else text_columns(path, schema, magic)
    return [] if schema.rest_are_features else [name for name in names if name not in schema.columns]


def infer_time_unit(column: ColumnValues, checks: RowChecks) -> str:
    """Returns the unit of a time column: "iso" if most values are ISO 8601, else by the size of the median value."""
    rows = np.flatnonzero(checks.valid)[:UNIT_SAMPLE]
    if isinstance(column, NumberColumn):
        numbers = column.values[rows][~column.missing[rows]]
        return "s" if column.in_seconds else _unit_of(numbers[np.isfinite(numbers)].astype(np.float64))
    texts = [column.text(int(row)).encode() for row in rows]
    parsed = [number for text in texts if (number := number_or_none(text)) is not None]
    if sum(is_iso_time(text) for text in texts) > len(parsed):
        return "iso"
    return _unit_of(np.array(parsed))


def _unit_of(numbers: Array) -> str:
    """Limits far from any real log: 1e11 s is the year 5138, 1e11 ms is 1973, and so on."""
    median = float(np.median(np.abs(numbers))) if len(numbers) else 0.0
    return "s" if median < 1e11 else "ms" if median < 1e14 else "us" if median < 1e17 else "ns"
