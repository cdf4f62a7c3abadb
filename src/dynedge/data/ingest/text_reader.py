"""Reads text files as blocks of rows: delimited text and JSON lines, plain or compressed."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from dynedge.data.ingest.block_columns import ColumnValues, TextColumn
from dynedge.data.ingest.csv_tokenizer import tokenize_delimited
from dynedge.data.ingest.json_lines import JsonLines
from dynedge.data.ingest.row_checks import RowChecks
from dynedge.data.ingest.schema import Block, Schema, column_index, second_role
from dynedge.errors import DataError
from dynedge.utils.prefetch import prefetch

BLOCK_BYTES = 8 << 20
MAX_LINE_BYTES = 64 << 20
COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
DELIMITERS = ",\t;|"
SAMPLE_BYTES = 1 << 16  # from which binary data is recognised
CONTROL_BYTES = [bytes([byte]) for byte in range(32) if byte not in b"\t\n\r"]
MAX_CONTROLS, MAX_CONTROL_SHARE = 64, 0.01  # a text may have as many control bytes as the larger of both


def text_blocks(path: Path, schema: Schema, magic: bytes) -> Iterator[Block]:
    """Yields the rows of a text file in order, as blocks; `magic` is the file's first bytes."""
    stream = _ByteStream(path, magic)
    head = stream.head(1)
    if not head:
        return
    _check_text(path, head)
    reader = _reader(path, schema, head)
    rest, line = head[reader.skip :], reader.first_line
    while True:
        chunk = stream.next()
        blocks, used, line = reader.blocks(rest, not chunk, line)
        for block in blocks:
            block.bytes_read = stream.bytes_read
            yield block
        if not chunk:
            return
        if used == 0 and len(rest) > MAX_LINE_BYTES:
            raise DataError(
                f"{path}: line {line} is longer than 64 MiB; check that this is a text file with one row per line."
            )
        rest = rest[used:] + chunk


def text_columns(path: Path, schema: Schema, magic: bytes) -> list[str]:
    """The names of the columns of a text file, which has been read; of JSON lines, the keys of the first object."""
    return list(_reader(path, schema, _ByteStream(path, magic).head(1)).names or ())


def with_feature_columns(path: Path, schema: Schema) -> Schema:
    """Returns the schema of a file whose last columns are features, with as many as the file's first row has."""
    assert schema.names is not None and schema.delimiter is not None
    with open(path, "rb") as file:
        stream = _ByteStream(path, file.read(4))
    second = stream.head(2).split(b"\n", 2)[1:2]
    fields = len(_split_line(path, second[0], schema.delimiter)) if second and second[0].strip() else 0
    width = max(fields - (len(schema.names) - 1), 0)
    return replace(schema, features=tuple(f"{schema.names[-1]}_{k}" for k in range(width)))


class _ByteStream:
    """The bytes of a text file, decompressed, without a byte-order mark, read ahead in a thread."""

    def __init__(self, path: Path, magic: bytes) -> None:
        self._chunks = prefetch(_read_chunks(path, magic), depth=4)
        self.bytes_read = 0  # of the file itself, before decompression

    def head(self, lines: int) -> bytes:
        """Returns the first bytes, with at least `lines` complete lines if the file has as many."""
        head = self.next()
        while head.count(b"\n") < lines and len(head) <= MAX_LINE_BYTES and (more := self.next()):
            head += more
        return head

    def next(self) -> bytes:
        """Returns the next bytes; empty at the end of the file."""
        for chunk, bytes_read in self._chunks:
            self.bytes_read = bytes_read
            if chunk:
                return chunk
        return b""


def _read_chunks(path: Path, magic: bytes) -> Iterator[tuple[bytes, int]]:
    """Yields (bytes, bytes read of the file itself).

    Not a method of the stream: the stream would be part of a reference cycle, and its thread would live until the
    garbage collector ends it, perhaps in a thread whose start it then blocks.
    """
    import pyarrow as pa

    compression = next((name for first, name in COMPRESSIONS.items() if magic.startswith(first)), None)
    raw = pa.OSFile(os.fspath(path))
    source = pa.CompressedInputStream(raw, compression) if compression else raw
    first = True
    while True:
        try:
            chunk = source.read(BLOCK_BYTES)
        except (OSError, pa.ArrowException):
            raise DataError(f"{path} is damaged or truncated: its {compression} data is invalid.") from None
        if first:
            if chunk[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise DataError(f"{path} is UTF-16 text; save it as UTF-8.")
            chunk, first = chunk.removeprefix(b"\xef\xbb\xbf"), False
        elif not chunk:
            return
        yield chunk, raw.tell()


def _reader(path: Path, schema: Schema, head: bytes) -> JsonLines | DelimitedText:
    suffixes = {suffix.lower() for suffix in path.suffixes}
    is_json = bool(suffixes & {".json", ".jsonl", ".ndjson"}) or (
        not suffixes & {".csv", ".tsv", ".txt"} and schema.names is None and head.lstrip()[:1] in (b"{", b"[")
    )
    reader = JsonLines(path, schema, head) if is_json else DelimitedText(path, schema, head)
    schema.check_roles()
    return reader


class DelimitedText:
    """Reads the columns of a schema from blocks of delimited text."""

    def __init__(self, path: Path, schema: Schema, head: bytes) -> None:
        self.path = path
        first = _first_line(head)
        delimiter = schema.delimiter or detect_delimiter(path, first)
        names = schema.names
        self.skip, self.first_line = 0, 1  # bytes and lines of the header
        if names is None or schema.rest_are_features:
            self.skip, self.first_line = min(len(first) + 1, len(head)), 2
        if names is None:
            names = tuple(_split_line(path, first, delimiter))
        if schema.rest_are_features:
            names = (*names[:-1], *schema.features)
        self.names = names
        self.delimiter = np.frombuffer(delimiter.encode(), np.uint8)
        self.slots = len(schema.columns)
        self.slot = np.full(len(names), -1, np.int32)
        for slot, name in enumerate(schema.columns):
            column = column_index(path, names, name, given=schema.names is not None, by_position=True)
            if self.slot[column] >= 0:
                raise second_role(names[column])
            self.slot[column] = slot

    def blocks(self, text: bytes, final: bool, line: int) -> tuple[list[Block], int, int]:
        """Returns (blocks, bytes consumed, next line number). An incomplete record is left for the next call."""
        data = np.frombuffer(text, np.uint8).copy()  # a copy: fields are unescaped in place
        capacity = int(np.count_nonzero(data == 10)) + 1
        start, stop = np.empty((capacity, self.slots), np.int32), np.empty((capacity, self.slots), np.int32)
        record, lines = np.empty((capacity, 2), np.int64), np.empty(capacity, np.int64)
        status, fields = np.empty(capacity, np.uint8), np.empty(capacity, np.int32)
        rows, used, line = tokenize_delimited(
            data, len(data), final, self.delimiter, True, self.slot, line, start, stop, record, lines, status, fields
        )
        columns: list[ColumnValues] = [TextColumn(data, start[:rows, k], stop[:rows, k]) for k in range(self.slots)]

        def record_text(row: int) -> str:
            return bytes(data[record[row, 0] : record[row, 1]]).decode(errors="backslashreplace").rstrip("\r")

        checks = RowChecks.from_status(status[:rows])
        block = Block(
            os.fspath(self.path), columns, lines[:rows], checks, record_text, fields[:rows], len(self.names), 0
        )
        return [block] if rows else [], used, line


def _check_text(path: Path, head: bytes) -> None:
    """Raises DataError for a file that has no lines of text: binary data, or lines that end with CR only."""
    sample = head[:SAMPLE_BYTES]
    controls = sum(sample.count(byte) for byte in CONTROL_BYTES)
    if controls > max(MAX_CONTROLS, MAX_CONTROL_SHARE * len(sample)):
        raise DataError(f"{path} is not a text file: it contains binary data; give CSV, JSON lines or Parquet files.")
    if b"\r" in _first_line(head).rstrip(b"\r"):
        raise DataError(
            f"{path} has lines that end with CR alone; convert it: tr '\\r' '\\n' < {path} > converted.csv"
        )


def _first_line(head: bytes) -> bytes:
    return head.split(b"\n", 1)[0]


def detect_delimiter(path: Path, first: bytes) -> str:
    """Returns the most frequent delimiter of the first line; the comma if there is none."""
    if ".tsv" in path.suffixes:
        return "\t"
    return max(DELIMITERS, key=lambda delimiter: first.count(delimiter.encode()))


def _split_line(path: Path, line: bytes, delimiter: str) -> list[str]:
    """Returns the fields of one line, as tokenize_delimited splits it."""
    text = line.decode(errors="backslashreplace").rstrip("\r")
    if len(delimiter) > 1:
        return [field.strip() for field in text.split(delimiter)]
    try:
        return [field.strip(" ") for field in next(csv.reader([text], delimiter=delimiter), [])]
    except csv.Error as error:
        raise DataError(f"{path}: the first line is not a list of columns ({error}).") from None
