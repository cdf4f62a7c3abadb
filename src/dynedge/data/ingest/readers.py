"""Files become blocks of rows: CSV, TSV, other delimited text, JSON lines and Parquet, plain or compressed."""

from __future__ import annotations

import csv
import glob
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.ingest import parsers as v
from dynedge.data.ingest.columns import ColumnValues, ListColumn, Marks, NumberColumn, TextColumn, to_seconds
from dynedge.data.ingest.tokenizer import cut_delimited, cut_json
from dynedge.errors import DataError, UsageError
from dynedge.utils.arrays import Array
from dynedge.utils.prefetch import prefetch

BLOCK_BYTES = 8 << 20
LONGEST_LINE = 64 << 20
PARQUET_ROWS = 1 << 18
COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
DELIMITERS = ",\t;|"
UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9, "iso": v.ISO}  # 10^-k seconds


@dataclass(frozen=True)
class Schema:
    """Which columns mean what, and how the file is written. Names are the file's own."""

    user: str = "user_id"
    item: str = "item_id"
    time: str = "timestamp"
    label: str | None = None
    event_id: str | None = None
    features: tuple[str, ...] = ()  # numbers, one column each; or one column with a packed list
    item_features: tuple[str, ...] = ()  # categories
    names: tuple[str, ...] | None = None  # all columns, for a file without a header
    delimiter: str | None = None  # found out when not given
    time_unit: str = "auto"  # s, ms, us, ns, iso
    rest_are_features: bool = False  # a header line is skipped; the last of `names` stands for any number of columns
    label_codes: tuple[str, ...] = ()  # a label written as words: its number is the word's place here

    @property
    def wanted(self) -> tuple[str, ...]:
        optional = [name for name in (self.label, self.event_id) if name]
        return (self.user, self.item, self.time, *optional, *self.features, *self.item_features)


@dataclass
class Block:
    """Some rows of a file: the wanted columns in the order of Schema.wanted."""

    file: str
    columns: list[ColumnValues]
    line: Array  # int64[rows]: line of the file, or row number where a file has no lines; counted from 1
    marks: Marks
    record: Callable[[int], str]  # a row as it stands in the file
    found: Array | None  # int32[rows]: fields in the row, for delimited text
    expected: int
    done: int  # bytes of the file used up, this block included

    def __len__(self) -> int:
        return len(self.line)


def expand(patterns: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Files and globs become a list of files that are there."""
    files: list[Path] = []
    for given in patterns:
        pattern = os.fspath(given)
        path = Path(pattern)
        if path.is_dir():
            raise DataError(
                f"{pattern} is a folder; name the files in it, for example '{pattern.rstrip('/')}/*.csv'."
            )
        if path.exists():
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


def read_blocks(path: Path, schema: Schema) -> Iterator[Block]:
    """All rows of a file, in order. Reading and cutting run ahead in threads of their own."""
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    if magic == b"PAR1":
        return prefetch(_parquet_blocks(path, schema))
    return prefetch(_text_blocks(path, schema, magic))


# ---- text


class _Stream:
    """The bytes of a text file, decompressed, without a byte-order mark, read ahead in a thread."""

    def __init__(self, path: Path, magic: bytes) -> None:
        self.path, self._magic = path, magic
        self._chunks = prefetch(self._read(), depth=4)
        self.done = 0  # bytes of the file itself, compressed where it is

    def _read(self) -> Iterator[tuple[bytes, int]]:
        import pyarrow as pa

        compression = next((name for magic, name in COMPRESSIONS.items() if self._magic.startswith(magic)), None)
        raw = pa.OSFile(os.fspath(self.path))
        source = pa.CompressedInputStream(raw, compression) if compression else raw
        first = True
        while True:
            try:
                chunk = source.read(BLOCK_BYTES)
            except (OSError, pa.ArrowException):
                raise DataError(f"{self.path} is damaged or cut short: its {compression} data ends badly.") from None
            if first:
                if chunk[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    raise DataError(f"{self.path} is UTF-16 text; save it as UTF-8.")
                chunk, first = chunk.removeprefix(b"\xef\xbb\xbf"), False
            elif not chunk:
                return
            yield chunk, raw.tell()

    def head(self, lines: int) -> bytes:
        """The first bytes, with at least so many lines of them whole if there are so many."""
        head = self.next()
        while head.count(b"\n") < lines and len(head) <= LONGEST_LINE and (more := self.next()):
            head += more
        return head

    def next(self) -> bytes:
        """The next bytes; empty at the end."""
        for chunk, done in self._chunks:
            self.done = done
            if chunk:
                return chunk
        return b""


def with_rest(path: Path, schema: Schema) -> Schema:
    """The schema of a file whose last columns are features, as many as its first row has."""
    assert schema.names is not None and schema.delimiter is not None
    with open(path, "rb") as file:
        stream = _Stream(path, file.read(4))
    second = stream.head(2).split(b"\n", 2)[1:2]
    fields = len(_fields(second[0], schema.delimiter)) if second and second[0].strip() else 0
    width = max(fields - (len(schema.names) - 1), 0)
    return replace(schema, features=tuple(f"{schema.names[-1]}_{k}" for k in range(width)))


def _text_blocks(path: Path, schema: Schema, magic: bytes) -> Iterator[Block]:
    stream = _Stream(path, magic)
    head = stream.head(1)
    if not head:
        return
    suffixes = {suffix.lower() for suffix in path.suffixes}
    is_json = bool(suffixes & {".json", ".jsonl", ".ndjson"}) or (
        not suffixes & {".csv", ".tsv", ".txt"} and schema.names is None and head.lstrip()[:1] == b"{"
    )
    cutter: _JsonCutter | _DelimitedCutter
    if is_json:
        cutter = _JsonCutter(path, schema, head)
    else:
        cutter = _DelimitedCutter(path, schema, head)
    rest, line = head[cutter.skip :], cutter.first_line
    while True:
        chunk = stream.next()
        data = np.frombuffer(rest, np.uint8).copy()  # a copy: fields are unescaped in place
        block, used, line = cutter.cut(data, not chunk, line)
        block.done = stream.done
        if len(block):
            yield block
        if not chunk:
            return
        if used == 0 and len(data) > LONGEST_LINE:
            raise DataError(f"{path}: line {line} is longer than 64 MiB; is this a text file with one row a line?")
        rest = rest[used:] + chunk


def _first_line(head: bytes) -> bytes:
    return head.split(b"\n", 1)[0]


class _DelimitedCutter:
    def __init__(self, path: Path, schema: Schema, head: bytes) -> None:
        self.path = path
        first = _first_line(head)
        delimiter = schema.delimiter or _guess_delimiter(path, first)
        names = schema.names
        self.skip, self.first_line = 0, 1
        if names is None or schema.rest_are_features:
            self.skip, self.first_line = min(len(first) + 1, len(head)), 2
        if names is None:
            names = tuple(_fields(first, delimiter))
        if schema.rest_are_features:
            names = (*names[:-1], *schema.features)
        self.expected = len(names)
        self.delimiter = np.frombuffer(delimiter.encode(), np.uint8)
        self.wanted = len(schema.wanted)
        self.slot = np.full(len(names), -1, np.int32)
        for slot, name in enumerate(schema.wanted):
            self.slot[_place(path, names, name, schema.names is not None)] = slot
        if len(set(schema.wanted)) < len(schema.wanted):
            twice = next(name for name in schema.wanted if schema.wanted.count(name) > 1)
            raise UsageError(f"column '{twice}' is asked for twice; every column can mean only one thing.")

    def cut(self, data: Array, final: bool, line: int) -> tuple[Block, int, int]:
        most = int(np.count_nonzero(data == 10)) + 1
        start, stop = np.empty((most, self.wanted), np.int32), np.empty((most, self.wanted), np.int32)
        record, lines = np.empty((most, 2), np.int64), np.empty(most, np.int64)
        status, found = np.empty(most, np.uint8), np.empty(most, np.int32)
        rows, used, line = cut_delimited(
            data, len(data), final, self.delimiter, True, self.slot, line, start, stop, record, lines, status, found
        )
        block = _text_block(self.path, data, start[:rows], stop[:rows], record, lines[:rows], status[:rows])
        return replace(block, found=found[:rows], expected=self.expected), used, line


class _JsonCutter:
    skip, first_line = 0, 1

    def __init__(self, path: Path, schema: Schema, head: bytes) -> None:
        self.path = path
        keys = [name.encode() for name in schema.wanted]
        self.keys = np.frombuffer(b"".join(keys), np.uint8)
        self.key_at = np.cumsum([0, *map(len, keys)]).astype(np.int64)
        self.may_nest = np.array([name in schema.features for name in schema.wanted])
        self._check_names(schema, _first_line(head))

    def _check_names(self, schema: Schema, first: bytes) -> None:
        """A wanted key that the first object lacks is far more often a wrong flag than a missing value."""
        import json

        try:
            names = list(json.loads(first))
        except (ValueError, TypeError):
            return  # a bad row like any other
        for name in (schema.user, schema.item, schema.time):
            _place(self.path, names, name, False)

    def cut(self, data: Array, final: bool, line: int) -> tuple[Block, int, int]:
        most, slots = int(np.count_nonzero(data == 10)) + 1, len(self.key_at) - 1
        start, stop = np.empty((most, slots), np.int32), np.empty((most, slots), np.int32)
        record, lines, status = np.empty((most, 2), np.int64), np.empty(most, np.int64), np.empty(most, np.uint8)
        rows, used, line = cut_json(
            data, len(data), final, self.keys, self.key_at, self.may_nest, line, start, stop, record, lines, status
        )
        return (
            _text_block(self.path, data, start[:rows], stop[:rows], record, lines[:rows], status[:rows]),
            used,
            line,
        )


def _text_block(
    path: Path, data: Array, start: Array, stop: Array, record: Array, line: Array, status: Array
) -> Block:
    columns: list[ColumnValues] = [TextColumn(data, start[:, slot], stop[:, slot]) for slot in range(start.shape[1])]

    def text(row: int) -> str:
        return bytes(data[record[row, 0] : record[row, 1]]).decode(errors="backslashreplace").rstrip("\r")

    return Block(os.fspath(path), columns, line, Marks.of(status), text, None, 0, 0)


def _guess_delimiter(path: Path, first: bytes) -> str:
    if ".tsv" in path.suffixes:
        return "\t"
    return max(DELIMITERS, key=lambda mark: first.count(mark.encode()))  # the first of equals: the comma


def _fields(line: bytes, delimiter: str) -> list[str]:
    """The fields of one line, as cut_delimited would cut it."""
    text = line.decode(errors="backslashreplace").rstrip("\r")
    if len(delimiter) > 1:
        return [field.strip() for field in text.split(delimiter)]
    return [field.strip(" ") for field in next(csv.reader([text], delimiter=delimiter), [])]


def _place(path: Path, names: Sequence[str], name: str, given: bool) -> int:
    if names.count(name) == 1:
        return list(names).index(name)
    if name in names:
        raise DataError(f"{path} has {names.count(name)} columns named '{name}'; rename all but one.")
    have = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    whose = "--columns names" if given else "its columns are"
    raise DataError(f"{path} has no column '{name}'; {whose}: {have}. Say which is meant, for example --user-col.")


# ---- Parquet


def _parquet_blocks(path: Path, schema: Schema) -> Iterator[Block]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
        for name in schema.wanted:
            _place(path, names, name, False)
        size, rows, line = os.path.getsize(path), max(file.metadata.num_rows, 1), 1
        for batch in file.iter_batches(PARQUET_ROWS, columns=list(schema.wanted)):
            columns = [_arrow_column(path, name, batch.column(name)) for name in schema.wanted]
            yield _parquet_block(path, columns, line, len(batch), size * (line + len(batch)) // rows)
            line += len(batch)
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a readable Parquet file: {str(error).splitlines()[0]}") from None


def _parquet_block(path: Path, columns: list[ColumnValues], line: int, rows: int, done: int) -> Block:
    marks = Marks.of(np.zeros(rows, np.uint8))
    lines = np.arange(line, line + rows, dtype=np.int64)
    return Block(os.fspath(path), columns, lines, marks, lambda row: "", None, 0, done)


def _arrow_column(path: Path, name: str, column: Any) -> ColumnValues:
    """An Arrow column of any type as one of ours."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    missing = np.asarray(column.is_null())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _arrow_text(column.cast(pa.large_string()), missing)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0), np.int64)
        flat = np.asarray(column.flatten().cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
        return ListColumn(flat, np.concatenate(([0], np.cumsum(lengths))), missing)
    if pa.types.is_timestamp(kind):
        raw = np.asarray(pc.fill_null(column.cast(pa.int64()), 0))
        return NumberColumn(to_seconds(raw, UNITS[kind.unit]), missing, seconds=True)
    if pa.types.is_date(kind):
        days = np.asarray(pc.fill_null(column.cast(pa.date32()).cast(pa.int32()), 0))
        return NumberColumn(days * 86400.0, missing, seconds=True)
    if pa.types.is_uint64(kind):
        return _arrow_text(column.cast(pa.large_string()), missing)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return NumberColumn(np.asarray(pc.fill_null(column.cast(pa.int64()), 0)), missing)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return NumberColumn(np.asarray(pc.fill_null(column.cast(pa.float64()), 0.0)), missing)
    raise DataError(
        f"{path}: column '{name}' is of type {kind}, which dynedge cannot read; cast it to text or numbers."
    )


def _arrow_text(column: Any, missing: Array) -> TextColumn:
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    heap = column.buffers()[2]
    data = np.frombuffer(heap, np.uint8) if heap is not None and heap.size else np.zeros(1, np.uint8)
    stop = np.where(missing, offsets[:-1] - 1, offsets[1:])
    return TextColumn(data, offsets[:-1], stop)


def infer_time_unit(column: ColumnValues, marks: Marks) -> str:
    """Seconds, milliseconds, … by the size of the typical value; ISO 8601 if most are written so."""
    if isinstance(column, NumberColumn):
        return "s" if column.seconds else _unit_of(column.values[~column.missing].astype(np.float64))
    rows = np.flatnonzero(marks.status == v.GOOD)[:2000]
    texts = [column.text(int(row)).encode() for row in rows]
    numbers = [number for text in texts if (number := v.number_or_none(text)) is not None]
    if sum(v.looks_iso(text) for text in texts) > len(numbers):
        return "iso"
    return _unit_of(np.array(numbers))


def _unit_of(numbers: Array) -> str:
    """Bounds far from any real log: 1e11 s is the year 5138, 1e11 ms is 1973, and so on up."""
    typical = float(np.median(np.abs(numbers))) if len(numbers) else 0.0
    return "s" if typical < 1e11 else "ms" if typical < 1e14 else "us" if typical < 1e17 else "ns"
