"""Checks of a log's files when it is opened, so that nothing in them can make compiled code read out of bounds.

log.json has the right types, every column has the dtype and shape of its role, and its numbers are in range: dense
ids and categories are rows that exist, offsets of texts ascend, texts are UTF-8, times ascend, numbers are finite.
Each column takes one pass in blocks that fit a CPU's cache; facts about large columns are remembered
(utils/file_checks.py).
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.id_index import IdIndex
from dynedge.data.timestamps import LATEST_TIME
from dynedge.errors import DataError
from dynedge.utils.array_type import Array
from dynedge.utils.file_checks import Facts, remembered

BLOCK = 1 << 17  # numbers looked at together
TYPES: dict[str, type | tuple[type, ...]] = {
    "features": list,
    "item_features": list,
    "user_features": list,
    "split": str,
    "time": dict,
    "source": dict,
    "trained_on": dict,
    "rejected_why": dict,
    "item_table": dict,
    "unused_columns": list,
    "label": str,
    "positive": str,
    "left_out": int,
    "rejected": int,
    "rows_read": int,
    "item_table_features": int,
    "label_is_feature": bool,
    "one_population": bool,
}
TRAINED_ON = {"path": str, "fingerprint": str, "prefix_checksum": str, "events": int, "users": int, "items": int}
COUNTS = {"events": 2**62, "users": 2**31 - 1, "items": 2**31 - 1}  # the largest allowed
INT32, INT64, FLOAT32, FLOAT64, BYTES = "<i4", "<i8", "<f4", "<f8", "|u1"
COLUMN_TYPES = {"user": INT32, "item": INT32, "time": FLOAT64, "features": FLOAT32, "label": FLOAT32}
COLUMN_TYPES |= {"event_id": INT32, "item_categories": INT32, "user_categories": INT32}
# Columns of categories: the columns of their names, and the entry of log.json with the features' names.
CATEGORIES = {
    "item_categories": ("category_{}_ids", "item_features"),
    "user_categories": ("user_category_{}_ids", "user_features"),
}
IDS = re.compile(r"(user|item|event|category_\d{1,4}|user_category_\d{1,4})_ids(_offsets)?")


def check_metadata(metadata: dict[str, Any]) -> str | None:
    """Returns what is wrong with the content of log.json, or None."""
    for name, most in COUNTS.items():
        if name not in metadata:
            return f"it has no '{name}'"
        if type(metadata[name]) is not int or not 0 <= metadata[name] <= most:
            return f"it has an invalid number of {name}"
    if "item_features" not in metadata:
        return "it has no 'item_features'"
    for name, kind in TYPES.items():
        if name in metadata and not isinstance(metadata[name], kind):
            return f"it has an invalid entry '{name}'"
    trained_on = metadata.get("trained_on", {})
    if not all(isinstance(trained_on.get(name, kind()), kind) for name, kind in TRAINED_ON.items()):
        return "it has an invalid entry 'trained_on'"
    if metadata.get("one_population") and metadata["users"] != metadata["items"]:
        return "it has one population, but not as many users as items"
    if not 0 <= metadata.get("item_table_features", 0) <= len(metadata["item_features"]):
        return "it has an invalid entry 'item_table_features'"
    kinds = "features", "item_features", "user_features"
    if not all(isinstance(name, str) for kind in kinds for name in metadata.get(kind, [])):
        return "it has a feature whose name is not text"
    table_columns = metadata.get("item_table", {}).get("columns", [])
    if not isinstance(table_columns, list) or not all(isinstance(name, str) for name in table_columns):
        return "it has an invalid entry 'item_table'"
    return _check_roles(metadata)


def _check_roles(metadata: dict[str, Any]) -> str | None:
    """Every column that a log must have is there, and all have the dtype and the number of rows of their role."""
    columns, counts = metadata["columns"], {name: metadata[name] for name in COUNTS}
    needed = ["user", "item", "time", "user_ids", "item_ids"]
    for column, (ids, features) in CATEGORIES.items():
        counts[column] = len(metadata.get(features, []))
        needed += [ids.format(k) for k in range(counts[column])] + [column] * (counts[column] > 0)
    for name in needed:
        if name not in columns:
            return f"it has no '{name}'"
    if ("event_id" in columns) != ("event_ids" in columns):
        return "it has event ids without their column, or the other way round"
    for name, column in columns.items():
        problem = _check_column(name, column, counts, columns)
        if problem:
            return f"column '{name}' {problem}"
    return None


def _check_column(name: str, column: Any, counts: dict[str, int], columns: dict[str, Any]) -> str | None:
    kind = IDS.fullmatch(name)
    if not (kind or name in COLUMN_TYPES):
        return "does not belong to a log"
    if not isinstance(column, dict) or not isinstance(column.get("sha256"), str):
        return "is damaged: its entry has no checksum"
    blocks = column.get("blocks", [])
    if not isinstance(blocks, list) or not all(isinstance(block, str) for block in blocks):
        return "is damaged: its checksums are not texts"
    shape, dtype = column.get("shape"), column.get("dtype")
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**62 for size in shape):
        return "is damaged: its shape is not a list of sizes"
    if len(shape) != (2 if name == "features" or name in CATEGORIES else 1):
        return "has the wrong number of dimensions"
    if kind is None:
        expected = COLUMN_TYPES[name]
    elif kind[2]:
        expected = INT64
    else:
        expected = BYTES if f"{name}_offsets" in columns else INT64
    if dtype != expected:
        return f"is of type {str(dtype)[:20]!r} instead of {expected!r}"
    rows: int | None
    if kind is None:
        rows = counts[{"item_categories": "items", "user_categories": "users"}.get(name, "events")]
    else:
        of_side = {"user": counts["users"], "item": counts["items"]}.get(kind[1])
        rows = None if of_side is None or expected == BYTES else of_side + bool(kind[2])
    if rows is not None and shape[0] != rows:
        return f"has {shape[0]} rows instead of {rows}"
    if kind is not None and kind[2] and not shape[0]:
        return "has no rows"
    if name in CATEGORIES and shape[1] != counts[name]:
        return f"has {shape[1]} columns instead of {counts[name]}"
    return None


def check_values(folder: Path, columns: dict[str, Array], metadata: dict[str, Any]) -> None:
    """Raises DataError, naming the column, if a number in it is out of range."""
    users, items = metadata["users"], metadata["items"]
    for name, count in (("user", users), ("item", items)):
        _check_range(folder, name, columns[name], 0, count - 1)
    for name in ("time", "features", "label"):
        if name in columns and not _facts(folder, name, columns[name]).get("finite", True):
            raise _damaged(folder, name, "a number is not finite")
    _check_range(folder, "time", columns["time"], -math.inf, LATEST_TIME)
    if not _ascends(folder, "time", columns["time"]):
        raise _damaged(folder, "time", "the times do not ascend")
    for name, column in columns.items():
        if f"{name}_offsets" in columns:
            _check_texts(folder, name, column, columns[f"{name}_offsets"])
    for codes, (names, features) in CATEGORIES.items():
        for k in range(len(metadata.get(features, []))):
            ids = IdIndex(columns[names.format(k)], columns.get(f"{names.format(k)}_offsets"))
            _check_range(folder, codes, columns[codes][:, k], -1, len(ids) - 1, f"column {k}")
    if "event_id" in columns:
        ids = IdIndex(columns["event_ids"], columns.get("event_ids_offsets"))
        _check_range(folder, "event_id", columns["event_id"], 0, len(ids) - 1)


def _check_range(folder: Path, name: str, column: Array, least: float, most: float, part: str = "") -> None:
    facts = _facts(folder, name, column, part)
    if facts and not least <= facts["min"] <= facts["max"] <= most:
        raise _damaged(folder, name, f"it has the number {facts['min'] if facts['min'] < least else facts['max']}")


def _check_texts(folder: Path, name: str, values: Array, offsets: Array) -> None:
    """Offsets ascend from 0 to the end of the bytes, and every text between two of them is UTF-8."""
    of_offsets = f"{name}_offsets"
    if not _ascends(folder, of_offsets, offsets) or offsets[0] != 0 or offsets[-1] != len(values):
        raise _damaged(folder, of_offsets, "the offsets do not ascend from 0 to the number of bytes")
    facts = remembered(_path(folder, name), f"text {len(values)}", lambda: _text_facts(values))
    if not facts["utf8"]:
        raise _damaged(folder, name, "a text is not valid UTF-8")
    if not facts["ascii"]:
        part = f"starts {len(offsets)} {_path(folder, name).stat().st_mtime_ns}"
        if not remembered(_path(folder, of_offsets), part, lambda: _start_characters(values, offsets))["ok"]:
            raise _damaged(folder, of_offsets, "an offset is inside a character")


def _facts(folder: Path, name: str, column: Array, part: str = "") -> Facts:
    """Smallest and largest number of a column, and whether all are finite; empty for an empty column."""
    if not column.size:
        return {}
    return remembered(_path(folder, name), f"range {column.shape} {part}", lambda: _range(column))


def _range(column: Array) -> Facts:
    lowest, highest = math.inf, -math.inf
    for block in _blocks(column):
        low, high = float(block.min()), float(block.max())  # NaN if the block has one
        if not (math.isfinite(low) and math.isfinite(high)):
            return {"min": 0, "max": 0, "finite": False}
        lowest, highest = min(lowest, low), max(highest, high)
    if column.dtype.kind == "f":
        return {"min": lowest, "max": highest, "finite": True}
    return {"min": int(lowest), "max": int(highest), "finite": True}


def _ascends(folder: Path, name: str, column: Array) -> bool:
    return bool(remembered(_path(folder, name), f"ascends {len(column)}", lambda: _ascend_facts(column))["ok"])


def _ascend_facts(column: Array) -> Facts:
    last = None
    for block in _blocks(column):
        if (last is not None and block[0] < last) or (block[1:] < block[:-1]).any():
            return {"ok": False}
        last = block[-1]
    return {"ok": True}


def _text_facts(values: Array) -> Facts:
    decoder, ascii_only = codecs.getincrementaldecoder("utf-8")(), True
    try:
        for block in _blocks(values):
            if ascii_only and block.max() < 0x80:
                continue
            ascii_only = False
            decoder.decode(block.tobytes())
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return {"ascii": False, "utf8": False}
    return {"ascii": ascii_only, "utf8": True}


def _start_characters(values: Array, offsets: Array) -> Facts:
    """Whether no offset points at a continuation byte of UTF-8."""
    return {"ok": not any((values[block[block < len(values)]] & 0xC0 == 0x80).any() for block in _blocks(offsets))}


def _blocks(column: Array) -> Iterator[Array]:
    """The rows of a column in blocks of about BLOCK numbers, at least one row each."""
    rows = max(1, BLOCK // max(1, math.prod(column.shape[1:])))
    for start in range(0, len(column), rows):
        yield np.asarray(column[start : start + rows])


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.npy"


def _damaged(folder: Path, name: str, reason: str) -> DataError:
    return DataError(f"{folder}: column '{name}' is damaged: {reason}; prepare the log again.")
