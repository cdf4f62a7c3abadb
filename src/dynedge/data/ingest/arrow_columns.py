"""Converts Arrow columns of any supported type to the columns of a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dynedge.data.ingest.block_columns import ColumnValues, ListColumn, NumberColumn, TextColumn, to_seconds
from dynedge.data.ingest.time_parser import TIME_UNITS
from dynedge.errors import DataError


def from_arrow(
    source: object, name: str, column: Any, source_text: Callable[[int], str] | None = None
) -> ColumnValues:
    """Converts a column of the file `source`; `source_text` returns the value of a row as that file has it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    missing = np.asarray(column.is_null())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return text_column(column.cast(pa.large_string()))
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if is_list and _is_number(kind.value_type):
        lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0), np.int64)
        flat = np.asarray(column.flatten().cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
        return ListColumn(flat, np.concatenate(([0], np.cumsum(lengths))), missing, source_text)
    if pa.types.is_timestamp(kind):
        raw = np.asarray(pc.fill_null(column.cast(pa.int64()), 0))
        return NumberColumn(to_seconds(raw, TIME_UNITS[kind.unit]), missing, in_seconds=True)
    if pa.types.is_date(kind):
        days = np.asarray(pc.fill_null(column.cast(pa.date32()).cast(pa.int32()), 0))
        return NumberColumn(days * 86400.0, missing, in_seconds=True)
    if pa.types.is_uint64(kind):
        return text_column(column.cast(pa.large_string()))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        integers = np.asarray(pc.fill_null(column.cast(pa.int64()), 0))
        return NumberColumn(integers, missing, source_text=source_text)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return NumberColumn(
            np.asarray(pc.fill_null(column.cast(pa.float64()), 0.0)), missing, source_text=source_text
        )
    raise DataError(
        f"{source}: column '{name}' is of type {kind}, which dynedge cannot read; cast it to text or numbers."
    )


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    of_numbers = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean
    return any(is_one(kind) for is_one in of_numbers) or bool(pa.types.is_null(kind))


def text_column(column: Any) -> TextColumn:
    """Wraps the buffers of an Arrow column of large strings or large binary values without copying."""
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    heap = column.buffers()[2]
    data = np.frombuffer(heap, np.uint8) if heap is not None and heap.size else np.zeros(1, np.uint8)
    stop = np.where(np.asarray(column.is_null()), offsets[:-1] - 1, offsets[1:])
    return TextColumn(data, offsets[:-1], stop)
