"""Reads a table that describes items or users, given to `prepare --item-table` or `--user-table`.

It is a CSV, TSV, JSON lines or Parquet file, or a data frame.
"""

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
from dynedge.data.item_metadata import ITEM_ID, USER_ID
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
    return _read_table(source, item_column, "item", ITEM_ID)


def read_user_features(source: Any, user_column: str, names: Sequence[str]) -> Any:
    """Returns the columns `names` of a table of users, with their ids as texts in the column user_id."""
    table = _read_table(source, user_column, "user", USER_ID)
    for name in names:
        if name not in table.column_names:
            shown = ", ".join(table.column_names[:20])
            raise DataError(f"--user-features {name}: the user table has no such column; its columns are: {shown}.")
    return feature_columns(table, names, USER_ID)


def _read_table(source: Any, id_column: str, kind: str, id_name: str) -> Any:
    flag = f"--{kind}-table"
    path = f"the {kind} table" if is_frame(source) else f"{flag} {os.fspath(source)}"
    table = as_arrow(source) if is_frame(source) else _read_file(Path(source), id_column, flag)
    if id_column not in table.column_names:
        shown = ", ".join(table.column_names[:20])
        raise DataError(f"{path} has no column '{id_column}', the {kind} ids; its columns are: {shown}.")
    names = [id_name if name == id_column else name for name in table.column_names]
    _check_names(path, names, kind)
    table = table.rename_columns(names)
    columns = {name: _checked_column(path, name, table[name], kind) for name in names}
    ids = columns[id_name] = columns[id_name].cast(pa.large_string())
    if ids.null_count:
        raise DataError(f"{path}: row {ids.is_null().to_pylist().index(True) + 1} has no {kind} id.")
    if len(ids.unique()) < len(ids):
        seen = dict[str, int]()
        for row, text in enumerate(ids.to_pylist(), 1):
            if text in seen:
                raise DataError(f"{path}: {kind} {text!r} has two rows, {seen[text]} and {row}; keep one of them.")
            seen[text] = row
    return pa.table(columns)


def feature_columns(table: Any, names: Sequence[str], id_name: str = ITEM_ID) -> Any:
    """Returns the columns of a table that are features, after the column of ids.

    A column of lists such as "Comedy|Drama" becomes up to LIST_COLUMNS columns: NAME_1, NAME_2 and so on.
    """
    columns = {id_name: table[id_name]}
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


def categories_of_table(table: Any, entities: IdIndex) -> tuple[Array, list[IdIndex]]:
    """int32[entities, columns]: each entity's category in each column after the ids, or −1; and their names."""
    rows = {entities.canonical(text): row for row, text in enumerate(table[0].to_pylist())}
    row = np.array([rows.get(entity, -1) for entity in entities.decoded], np.int64)
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


def _check_names(path: str, names: Sequence[str], kind: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{path} has two columns '{name}'; rename one.")
        if kind == "item" and name in RESERVED:
            raise DataError(f"{path}: the column name '{name}' is reserved for recommendations; rename it.")
    if not 1 < len(names) <= MAX_COLUMNS + 1:
        count = f"1 to {MAX_COLUMNS} columns besides the {kind} ids, not {len(names) - 1}"
        raise DataError(f"{path} should have {count}.")


def _checked_column(path: str, name: str, column: Any, kind_of_table: str) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = kind.value_type
    plain = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind)
    if plain or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return column
    if pa.types.is_temporal(kind) or pa.types.is_null(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.float64() if pa.types.is_decimal(kind) else pa.string())
    raise DataError(
        f"{path}: the column '{name}' holds {kind}; a table of {kind_of_table}s has texts, numbers and booleans."
    )


def _read_file(path: Path, id_column: str, flag: str) -> Any:
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
                column_types={id_column: pa.string()},
                strings_can_be_null=True,  # "007" is not 7
            ),
        )
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{flag} {path} cannot be read: {' '.join(str(error).split())}.") from None
