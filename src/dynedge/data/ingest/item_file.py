"""Reads a table that describes items, given to `prepare --item-table`: a CSV, TSV, JSON lines or Parquet file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from dynedge.data.frames import as_arrow, is_frame
from dynedge.data.id_index import IdIndex
from dynedge.data.ingest.text_reader import detect_delimiter
from dynedge.data.item_metadata import ITEM_ID
from dynedge.errors import DataError
from dynedge.utils.array_type import Array

RESERVED = ("user_id", "score", "rank")  # columns of answers
MAX_COLUMNS = 64
LIST_SEPARATOR, LIST_COLUMNS = "|", 3  # of a column of lists, such as the genres of a film
HEAD_BYTES = 1 << 16


def read_item_table(source: Any, item_column: str) -> Any:
    """Returns a table of items, with their ids as texts in the column item_id; `source` is a path or a data frame.

    DataError names what is wrong with it.
    """
    path = "the item table" if is_frame(source) else f"--item-table {os.fspath(source)}"
    table = as_arrow(source) if is_frame(source) else _read_file(Path(source), item_column)
    if item_column not in table.column_names:
        shown = ", ".join(table.column_names[:20])
        raise DataError(f"{path} has no column '{item_column}', the item ids; its columns are: {shown}.")
    names = [ITEM_ID if name == item_column else name for name in table.column_names]
    _check_names(path, names)
    table = table.rename_columns(names)
    columns = {name: _checked_column(path, name, table[name]) for name in names}
    ids = columns[ITEM_ID] = columns[ITEM_ID].cast(pa.large_string())
    if ids.null_count:
        raise DataError(f"{path}: row {ids.is_null().to_pylist().index(True) + 1} has no item id.")
    if len(ids.unique()) < len(ids):
        seen = dict[str, int]()
        for row, text in enumerate(ids.to_pylist(), 1):
            if text in seen:
                raise DataError(f"{path}: item {text!r} has two rows, {seen[text]} and {row}; keep one of them.")
            seen[text] = row
    return pa.table(columns)


def feature_columns(table: Any, names: Sequence[str]) -> Any:
    """Returns the columns of an item table that are item features, with item_id.

    A column of lists such as "Comedy|Drama" becomes up to LIST_COLUMNS columns: NAME_1, NAME_2 and so on.
    """
    columns = {ITEM_ID: table[ITEM_ID]}
    for name in names:
        texts = table[name].cast(pa.large_string())
        parts = pa.compute.split_pattern(texts, LIST_SEPARATOR)
        longest = min(pa.compute.max(pa.compute.list_value_length(parts)).as_py() or 1, LIST_COLUMNS)
        if longest == 1:
            columns[name] = texts
            continue
        lists = [row or [] for row in parts.to_pylist()]
        for k in range(longest):
            column = [row[k] if k < len(row) else None for row in lists]
            columns[f"{name}_{k + 1}"] = pa.array(column, pa.large_string())
    return pa.table(columns)


def categories_of_table(table: Any, items: IdIndex) -> tuple[Array, list[IdIndex]]:
    """int32[items, columns]: the category of each item in each column, or −1; and the categories of each column."""
    rows = {items.canonical(text): row for row, text in enumerate(table[ITEM_ID].to_pylist())}
    row = np.array([rows.get(item, -1) for item in items.decoded], np.int64)
    codes, names = [], []
    for name in table.column_names[1:]:
        encoded = table[name].combine_chunks().dictionary_encode()
        code = np.append(np.asarray(encoded.indices.fill_null(-1)).astype(np.int32), np.int32(-1))[row]
        used, code_of = np.unique(code[code >= 0], return_inverse=True)
        code[code >= 0] = code_of
        codes.append(code)
        texts = encoded.dictionary.to_pylist()
        names.append(IdIndex.from_ids(texts[k] for k in used))
    return np.column_stack(codes).astype(np.int32), names


def _check_names(path: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{path} has two columns '{name}'; rename one.")
        if name in RESERVED:
            raise DataError(f"{path}: a column '{name}' would be taken for a part of an answer; rename it.")
    if not 1 < len(names) <= MAX_COLUMNS + 1:
        raise DataError(f"{path} should have 1 to {MAX_COLUMNS} columns besides the item ids, not {len(names) - 1}.")


def _checked_column(path: str, name: str, column: Any) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = kind.value_type
    plain = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind)
    if plain or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return column
    if pa.types.is_temporal(kind) or pa.types.is_null(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.float64() if pa.types.is_decimal(kind) else pa.string())
    raise DataError(f"{path}: the column '{name}' holds {kind}; an item table has texts, numbers and booleans.")


def _read_file(path: Path, item_column: str) -> Any:
    try:
        with pa.input_stream(path) as stream:  # decompresses by the suffix
            head = stream.read(HEAD_BYTES)
        if head[:4] == b"PAR1":
            return pa.parquet.read_table(path)
        if {suffix.lower() for suffix in path.suffixes} & {".json", ".jsonl", ".ndjson"}:
            return pa.json.read_json(path)
        return pa.csv.read_csv(
            path,
            parse_options=pa.csv.ParseOptions(
                delimiter=detect_delimiter(path, head.split(b"\n", 1)[0]), newlines_in_values=True
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types={item_column: pa.string()},
                strings_can_be_null=True,  # "007" is not 7
            ),
        )
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"--item-table {path} cannot be read: {' '.join(str(error).split())}.") from None
