"""Reader of JSON lines: blocks of lines to columns, by pyarrow.json.

pyarrow reads a block at once and refuses it as a whole for a line that is not an object, or a value of another type
than in the block's first lines. Such a block is halved until it is small; a small one is read again line by line with
Python's json module, which finds each bad line and takes values of any type.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.ingest.arrow_columns import from_arrow, text_column
from dynedge.data.ingest.block_columns import ColumnValues, ListColumn, NumberColumn
from dynedge.data.ingest.row_checks import NOT_AN_ID, NOT_JSON, VALID, RowChecks
from dynedge.data.ingest.schema import Block, Schema, column_index
from dynedge.errors import DataError
from dynedge.utils.array_type import Array

PARSE_BYTES = 1 << 20  # parsed by one of pyarrow's threads at a time
SLOW_BYTES = 1 << 16  # a block of at most this size is read line by line if pyarrow refuses it
TYPE_SAMPLE = 20  # lines of a block from which the types of its columns are taken

_NEWLINE, _RETURN, _OPEN, _CLOSE = b"\n\r{}"
_DECODER = json.JSONDecoder(parse_int=float)  # numbers are read from their text; a Python integer has a longest one
_KEY = re.compile(r'[ \t\r,]*("(?:[^"\\]|\\.)*")[ \t\r]*:[ \t\r]*')


class JsonLines:
    """Reads the columns of a schema from blocks of complete lines, one JSON object each."""

    skip, first_line = 0, 1

    def __init__(self, path: Path, schema: Schema, head: bytes) -> None:
        if head.lstrip()[:1] == b"[":
            advice = f"write one object per line, for example with: jq -c '.[]' {path} > {path.stem}.jsonl"
            raise DataError(f"{path} is one JSON array; {advice}")
        self.path, self.schema = path, schema
        self.names = _keys(head.split(b"\n", 1)[0])
        if self.names is not None:  # if a key is missing here, the flag is wrong more often than the object
            for name in (schema.user, schema.item, schema.time):
                column_index(path, self.names, name)

    def blocks(self, data: bytes, final: bool, line: int) -> tuple[Iterator[Block], int, int]:
        """Returns (blocks, bytes consumed, next line number). An incomplete line is left for the next call."""
        used = len(data) if final else data.rfind(b"\n") + 1
        return self._blocks(data[:used], line), used, line + data.count(b"\n", 0, used)

    def _blocks(self, data: bytes, line: int) -> Iterator[Block]:
        if not data.strip(b" \t\r\n"):
            return
        block = self._read(data, line)
        middle = data.find(b"\n", len(data) // 2) + 1
        if block is not None:
            yield block
        elif len(data) <= SLOW_BYTES or not 0 < middle < len(data):
            yield self._read_line_by_line(data, line)
        else:
            yield from self._blocks(data[:middle], line)
            yield from self._blocks(data[middle:], line + data.count(b"\n", 0, middle))

    def _read(self, data: bytes, line: int) -> Block | None:
        """Returns the rows of a block as pyarrow reads them; None if it may not read them as they are."""
        import pyarrow as pa
        import pyarrow.json

        lines = _one_object_each(data)
        if lines is None:
            return None
        start, stop, number = lines
        types = self._types([data[a:b] for a, b in zip(start[:TYPE_SAMPLE], stop[:TYPE_SAMPLE], strict=True)])
        try:
            table = pa.json.read_json(
                pa.BufferReader(data),
                pa.json.ReadOptions(block_size=max(PARSE_BYTES, int((stop - start).max()) + 2)),
                pa.json.ParseOptions(explicit_schema=pa.schema(types), unexpected_field_behavior="ignore"),
            )
        except pa.ArrowInvalid:
            return None
        if len(table) != len(start):  # several objects in a line
            return None

        def record(row: int) -> bytes:
            return data[start[row] : stop[row]]

        columns = [self._column(name, table[name].combine_chunks(), record) for name in self.schema.columns]
        if not all(map(_is_exact, columns)):
            return None
        checks = RowChecks.from_status(np.zeros(len(start), np.uint8))
        return self._block(columns, line + number, checks, record)

    def _column(self, name: str, column: Any, record: Callable[[int], bytes]) -> ColumnValues:
        import pyarrow as pa

        if pa.types.is_large_binary(column.type):
            return text_column(column)
        slot = self.schema.columns.index(name)
        return from_arrow(self.path, name, column, lambda row: (self._fields(record(row))[0][slot] or b"").decode())

    def _block(
        self, columns: list[ColumnValues], line: Array, checks: RowChecks, record: Callable[[int], bytes]
    ) -> Block:
        def text(row: int) -> str:
            return record(row).decode(errors="backslashreplace").rstrip("\r")

        return Block(os.fspath(self.path), columns, line, checks, text, None, 0, 0)

    def _types(self, lines: list[bytes]) -> list[tuple[str, Any]]:
        """Returns the Arrow type of each column of a block, by the values in some of its lines."""
        import pyarrow as pa

        rows = [row for line in lines if isinstance(row := _loads(line), dict)]
        ids = (self.schema.user, self.schema.item, self.schema.event_id, *self.schema.item_features)
        types = []
        for name in self.schema.columns:
            kinds = {type(row[name]) for row in rows if row.get(name) is not None}
            chosen = pa.large_binary()
            if kinds == {int} and (name in ids or name == self.schema.time):
                chosen = pa.int64()  # float64 cannot hold nanoseconds
            elif kinds and kinds <= {int, float} and name not in ids:
                chosen = pa.float64()
            elif kinds == {bool} and name not in (*ids, self.schema.time):
                chosen = pa.bool_()
            elif kinds == {list} and self.schema.features == (name,):
                chosen = pa.list_(pa.float64())
            types.append((name, chosen))
        return types

    def _read_line_by_line(self, data: bytes, line: int) -> Block:
        """Returns the rows of a block, all values as texts, with a status for each line that is not an object."""
        import pyarrow as pa

        lines = [(k, text) for k, text in enumerate(data.split(b"\n")) if text.strip(b" \t\r")]
        read = [self._fields(text) for _, text in lines]
        checks = RowChecks(
            np.array([status for _, status, _ in read], np.uint8), np.array([bad for *_, bad in read], np.int32)
        )
        slots = range(len(self.schema.columns))
        columns: list[ColumnValues] = [
            text_column(pa.array([fields[slot] for fields, *_ in read], pa.large_binary())) for slot in slots
        ]
        numbers = np.array([k for k, _ in lines], np.int64)
        return self._block(columns, line + numbers, checks, lambda row: lines[row][1])

    def _fields(self, line: bytes) -> tuple[list[bytes | None], int, int]:
        """Returns (the text of each column in a line, status, the bad column or -1)."""
        missing: list[bytes | None] = [None] * len(self.schema.columns)
        try:
            members = _members(line.decode(errors="surrogateescape"))
            texts = {
                key: None if value is None else text.encode(errors="surrogateescape")
                for key, (value, text) in members.items()
            }
        except (ValueError, RecursionError):
            return missing, NOT_JSON, -1
        fields = [texts.get(name) for name in self.schema.columns]
        for slot, name in enumerate(self.schema.columns):
            if name not in self.schema.features and isinstance(members.get(name, (None,))[0], list | dict):
                return fields, NOT_AN_ID, slot
        return fields, VALID, -1


def _one_object_each(data: bytes) -> tuple[Array, Array, Array] | None:
    """Returns (start, stop, number) of the lines that are not empty; None unless they all are "{" to "}".

    Where every line is, a line cannot end inside an object: between "}" and "{" there would be a comma.
    """
    array = np.frombuffer(data, np.uint8)
    newline = np.flatnonzero(array == _NEWLINE)
    start, stop = np.append(0, newline + 1), np.append(newline, len(data))
    stop -= (stop > start) & (array[stop - 1] == _RETURN)
    number = np.flatnonzero(stop > start)
    start, stop = start[number], stop[number]
    complete = bool((array[start] == _OPEN).all() and (array[stop - 1] == _CLOSE).all())
    return (start, stop, number) if complete else None


def _is_exact(column: ColumnValues) -> bool:
    """Whether a column has exactly the values of the file, without errors that only their text shows."""
    if isinstance(column, ListColumn):
        return bool(np.isfinite(column.flat).all())
    if isinstance(column, NumberColumn) and column.values.dtype == np.float64:
        return not (np.abs(column.values) >= 2**53).any()
    return True


def _loads(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _keys(line: bytes) -> list[str] | None:
    """The keys of the object in a line; None if it is not one."""
    first = _loads(line)
    return list(first) if isinstance(first, dict) else None


def _members(line: str) -> dict[str, tuple[Any, str]]:
    """Returns the values of the JSON object in a line with their texts; ValueError if it is not one object."""
    if not isinstance(_DECODER.decode(line), dict):
        raise ValueError("not an object")
    members, at = {}, line.index("{") + 1
    while key := _KEY.match(line, at):
        value, at = _DECODER.raw_decode(line, key.end())
        members[json.loads(key[1])] = (value, value if isinstance(value, str) else line[key.end() : at])
    return members
