"""Reads Parquet files and Arrow tables as blocks of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.ingest.block_columns import ColumnValues, ListColumn, NumberColumn, TextColumn, to_seconds
from dynedge.data.ingest.row_checks import RowChecks
from dynedge.data.ingest.schema import Block, Schema, column_index
from dynedge.data.ingest.time_parser import TIME_UNITS
from dynedge.errors import DataError
from dynedge.utils.array_type import Array

BLOCK_ROWS = 1 << 18


@dataclass(frozen=True)
class FrameInput:
    """An Arrow table as input, in the place of a file."""

    table: Any  # pyarrow.Table

    def __str__(self) -> str:
        return "the frame"


def table_blocks(frame: FrameInput, schema: Schema) -> Iterator[Block]:
    """Yields the rows of an Arrow table in order, as blocks."""
    _check_columns(frame, frame.table.column_names, schema)
    table, rows = frame.table.select(list(schema.columns)), max(len(frame.table), 1)
    for start in range(0, len(table), BLOCK_ROWS):
        batch = table.slice(start, BLOCK_ROWS)
        columns = [_from_arrow(frame, name, batch[name].combine_chunks()) for name in schema.columns]
        stop = start + len(batch)
        yield _block(str(frame), columns, start + 1, len(batch), frame.table.nbytes * stop // rows)


def parquet_columns(path: Path) -> list[str]:
    """The names of the columns of a Parquet file, which has been read."""
    import pyarrow.parquet as pq

    return list(pq.read_schema(path).names)


def parquet_blocks(path: Path, schema: Schema) -> Iterator[Block]:
    """Yields the rows of a Parquet file in order, as blocks."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        _check_columns(path, file.schema_arrow.names, schema)
        size, rows, line = os.path.getsize(path), max(file.metadata.num_rows, 1), 1
        for batch in file.iter_batches(BLOCK_ROWS, columns=list(schema.columns)):
            columns = [_from_arrow(path, name, batch.column(name)) for name in schema.columns]
            yield _block(os.fspath(path), columns, line, len(batch), size * (line + len(batch)) // rows)
            line += len(batch)
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a readable Parquet file: {str(error).splitlines()[0]}") from None


def _check_columns(source: Path | FrameInput, names: list[str], schema: Schema) -> None:
    schema.check_roles()
    for name in schema.columns:
        column_index(source, names, name)


def _block(file: str, columns: list[ColumnValues], line: int, rows: int, bytes_read: int) -> Block:
    checks = RowChecks.from_status(np.zeros(rows, np.uint8))
    lines = np.arange(line, line + rows, dtype=np.int64)
    return Block(file, columns, lines, checks, lambda row: "", None, 0, bytes_read)


def _from_arrow(path: Path | FrameInput, name: str, column: Any) -> ColumnValues:
    """Converts an Arrow column of any supported type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    missing = np.asarray(column.is_null())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _text_column(column.cast(pa.large_string()), missing)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0), np.int64)
        flat = np.asarray(column.flatten().cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
        return ListColumn(flat, np.concatenate(([0], np.cumsum(lengths))), missing)
    if pa.types.is_timestamp(kind):
        raw = np.asarray(pc.fill_null(column.cast(pa.int64()), 0))
        return NumberColumn(to_seconds(raw, TIME_UNITS[kind.unit]), missing, in_seconds=True)
    if pa.types.is_date(kind):
        days = np.asarray(pc.fill_null(column.cast(pa.date32()).cast(pa.int32()), 0))
        return NumberColumn(days * 86400.0, missing, in_seconds=True)
    if pa.types.is_uint64(kind):
        return _text_column(column.cast(pa.large_string()), missing)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return NumberColumn(np.asarray(pc.fill_null(column.cast(pa.int64()), 0)), missing)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return NumberColumn(np.asarray(pc.fill_null(column.cast(pa.float64()), 0.0)), missing)
    raise DataError(
        f"{path}: column '{name}' is of type {kind}, which dynedge cannot read; cast it to text or numbers."
    )


def _text_column(column: Any, missing: Array) -> TextColumn:
    """Wraps the buffers of an Arrow large_string column without copying."""
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    heap = column.buffers()[2]
    data = np.frombuffer(heap, np.uint8) if heap is not None and heap.size else np.zeros(1, np.uint8)
    stop = np.where(missing, offsets[:-1] - 1, offsets[1:])
    return TextColumn(data, offsets[:-1], stop)
