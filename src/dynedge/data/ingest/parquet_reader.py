"""Reads Parquet files and Arrow tables as blocks of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.ingest.arrow_columns import from_arrow
from dynedge.data.ingest.block_columns import ColumnValues
from dynedge.data.ingest.row_checks import RowChecks
from dynedge.data.ingest.schema import Block, Schema, column_index
from dynedge.errors import DataError

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
        columns = [from_arrow(frame, name, batch[name].combine_chunks()) for name in schema.columns]
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
            columns = [from_arrow(path, name, batch.column(name)) for name in schema.columns]
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
