"""Files become an event log: read, check, number the ids, sort by time, write; every bad row is listed."""

from __future__ import annotations

import csv
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.ingest import parsers as v
from dynedge.data.ingest.columns import Marks, TextColumn
from dynedge.data.ingest.external_sort import PIECE_ROWS, RawColumn, in_time_order
from dynedge.data.ingest.id_encoder import IdTable
from dynedge.data.ingest.readers import UNITS, Block, Schema, expand, infer_time_unit, read_blocks, with_rest
from dynedge.data.log import HEADER_BYTES, Column, EventLog, LogWriter, read_log
from dynedge.data.splits import DEFAULT_SPLIT, Split
from dynedge.errors import DataError, UsageError
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled
from dynedge.utils.prefetch import prefetch
from dynedge.utils.progress import Progress

UNIT_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds", "iso": "ISO 8601"}
DEFAULT_MAX_BAD = 0.001
HOPELESS_ROWS = 1_000_000  # not one good row among so many: the rest is not read
VALUE_SHOWN = 200  # characters of a bad value in rejects.csv


def prepare(
    files: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    out: str | os.PathLike[str],
    schema: Schema | None = None,
    *,
    max_bad: float = DEFAULT_MAX_BAD,
    split: Split = DEFAULT_SPLIT,
    source: dict[str, Any] | None = None,
    force: bool = False,
    quiet: bool = True,
) -> EventLog:
    """Read files into a log folder at `out`, which appears whole or not at all.

    Raises DataError when a file cannot be read or more than `max_bad` of the rows are bad; what was bad is then
    listed in OUT.rejects.csv beside the log that was not written.
    """
    paths = expand([files] if isinstance(files, str | os.PathLike) else files)
    schema = _checked(schema or Schema())
    if schema.rest_are_features:
        schema = with_rest(paths[0], schema)
    beside = Path(f"{os.fspath(out).rstrip('/')}.rejects.csv")
    with LogWriter(out, force=force) as writer:
        spool = writer.folder / "spool"
        spool.mkdir()
        rows = _Rows(writer, spool, schema)
        with _Rejects(writer.folder / "rejects.csv", schema) as rejects:
            try:
                _read_all(paths, rows, rejects, quiet)
                _judge(rows, rejects, paths, max_bad, beside)
            except DataError:
                if rejects.count:
                    shutil.copyfile(rejects.path, beside)
                raise
        rows.sort(quiet)
        shutil.rmtree(spool)
        counts = rows.finish()
        writer.finish(
            **counts,
            rows_read=rows.read,
            rejected=rejects.count,
            rejected_why=dict(rejects.why.most_common()),
            features=rows.feature_names,
            item_features=list(schema.item_features),
            split=str(split),
            time={"unit": rows.unit, "inferred": schema.time_unit == "auto"},
            source={**(source or {}), "files": [path.name for path in paths]},
        )
    beside.unlink(missing_ok=True)  # left by an earlier try at this log
    return read_log(out)


def _checked(schema: Schema) -> Schema:
    if schema.time_unit not in ("auto", *UNITS):
        known = ", ".join(["auto", *UNITS])
        raise UsageError(f"--time-unit {schema.time_unit!r} is not one of {known}.")
    if schema.delimiter is not None and not 1 <= len(schema.delimiter.encode()) <= 2:
        raise UsageError(f"--delimiter {schema.delimiter!r} should be one or two characters.")
    return schema


def _read_all(paths: list[Path], rows: _Rows, rejects: _Rejects, quiet: bool) -> None:
    with Progress("reading", sum(path.stat().st_size for path in paths), "rows", quiet=quiet) as progress:
        for path in paths:
            before = 0
            for block in read_blocks(path, rows.schema):
                rows.add(block)
                rejects.add(block)
                progress.advance(block.done - before, len(block))
                before = block.done
                if rows.read >= HOPELESS_ROWS and not rows.accepted:
                    return


def _judge(rows: _Rows, rejects: _Rejects, paths: list[Path], max_bad: float, beside: Path) -> None:
    """Repeated event ids are listed with the bad rows but are no reason to stop: resending is how streams work."""
    name = f"{paths[0]}" if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    if not rows.read:
        raise DataError(f"{name} is empty: there is no row to read.")
    bad = rejects.count - rejects.why[v.REASONS[v.DUPLICATE]]
    if rows.accepted and bad <= max_bad * rows.read:
        return
    share = f"{rejects.count} of {rows.read} rows are bad ({rejects.count / rows.read:.2%}"
    limit = f", more than --max-bad {max_bad:.4g}" if rows.accepted else ""
    raise DataError(
        f"{name}: {share}{limit}); first: {rejects.first}. All are listed in {beside}; no log was written."
    )


@dataclass
class _Rejects:
    """rejects.csv: one line for each bad row, naming the first thing that is wrong with it."""

    path: Path
    schema: Schema

    def __post_init__(self) -> None:
        self.count = 0
        self.why: Counter[str] = Counter()
        self.first = ""

    def __enter__(self) -> _Rejects:
        self._file = open(self.path, "w", newline="", encoding="utf-8")
        self._csv = csv.writer(self._file)
        self._csv.writerow(["file", "line", "column", "value", "reason"])
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()

    def add(self, block: Block) -> None:
        names = self.schema.wanted
        for row in np.flatnonzero(block.marks.status != v.GOOD).tolist():
            code, where, line = int(block.marks.status[row]), int(block.marks.where[row]), int(block.line[row])
            reason = v.REASONS[code]
            self.why[reason] += 1
            if code == v.COUNT and block.found is not None:
                reason = f"{block.found[row]} columns instead of {block.expected}"
            column = names[where] if where >= 0 else ""
            value = block.columns[where].text(row) if where >= 0 else block.record(row)
            self._csv.writerow([block.file, line, column, value[:VALUE_SHOWN].replace("\0", "\\x00"), reason])
            if not self.count:
                self.first = f"line {line}, {f'column {column}, ' if column else ''}{reason}"
            self.count += 1
        self._file.flush()


class _Rows:
    """The accepted rows on their way to disk. Written as they come, and sorted afterwards if they must be."""

    def __init__(self, writer: LogWriter, spool: Path, schema: Schema) -> None:
        self.writer, self.spool, self.schema = writer, spool, schema
        self.read = self.accepted = 0
        self.unit = schema.time_unit
        self.width = -1  # numbers in the packed feature column; -1: not known yet, 0: the column is not packed
        self.users, self.items, self.event_ids = IdTable(), IdTable(), IdTable()
        self.categories = [IdTable() for _ in schema.item_features]
        self.sorted, self._last_time = True, -np.inf
        self._category: Column | None = None
        self._second = ThreadPoolExecutor(1)  # items are numbered there while users are numbered here

    # ---- reading

    def add(self, block: Block) -> None:
        """Check a block (marking its bad rows) and write its good ones."""
        schema, marks, names = self.schema, block.marks, self.schema.wanted
        by_name = dict(zip(names, enumerate(block.columns), strict=True))
        piece: dict[str, Array] = {}
        rows = len(block)
        for name in (schema.user, schema.item, schema.event_id):
            if name:
                slot, column = by_name[name]
                column.check_ids(marks, slot, True)
        for name in schema.item_features:
            slot, column = by_name[name]
            column.check_ids(marks, slot, False)
        slot, column = by_name[schema.time]
        if self.unit == "auto" and (marks.status == v.GOOD).any():
            self.unit = infer_time_unit(column, marks)
        piece["time"] = np.zeros(rows)
        column.times(marks, slot, UNITS.get(self.unit, 0), piece["time"])
        if schema.label:
            piece["label"] = np.zeros(rows, np.float32)
            slot, column = by_name[schema.label]
            if schema.label_codes:
                column = _numbered(column, schema.label_codes)
            column.numbers(marks, slot, piece["label"])
            _refuse_too_large(marks, slot, piece["label"][:, None])
        if schema.features:
            piece["features"] = self._features(block, by_name)
        if schema.event_id:
            piece["event_id"] = np.empty(rows, np.int32)
            slot, column = by_name[schema.event_id]
            column.encode(self.event_ids, marks, piece["event_id"], unique=slot)
        # Ids are numbered last, so that a row rejected for anything else leaves no user or item without events.
        piece["user"], piece["item"] = np.empty(rows, np.int32), np.empty(rows, np.int32)
        numbered = self._second.submit(by_name[schema.item][1].encode, self.items, marks, piece["item"])
        by_name[schema.user][1].encode(self.users, marks, piece["user"])
        numbered.result()
        if schema.item_features:
            piece["category"] = np.empty((rows, len(schema.item_features)), np.int32)
            for k, (name, table) in enumerate(zip(schema.item_features, self.categories, strict=True)):
                codes = np.empty(rows, np.int32)
                by_name[name][1].encode(table, marks, codes)
                piece["category"][:, k] = codes
        good = marks.status == v.GOOD
        self.read += rows
        self._append({name: values if good.all() else values[good] for name, values in piece.items()})

    def _features(self, block: Block, by_name: dict[str, tuple[int, Any]]) -> Array:
        schema, marks = self.schema, block.marks
        slot, column = by_name[schema.features[0]]
        if self.width < 0 and (good := np.flatnonzero(marks.status == v.GOOD)).size:
            self.width = (column.list_width(int(good[0])) or 0) if len(schema.features) == 1 else 0
        if self.width > 0:
            packed = np.zeros((len(block), self.width), np.float32)
            column.lists(marks, slot, packed)
            _refuse_too_large(marks, slot, packed)
            return packed
        values = np.zeros((len(block), len(schema.features)), np.float32)
        for k, name in enumerate(schema.features):
            slot, column = by_name[name]
            column.numbers(marks, slot, values[:, k])
            _refuse_too_large(marks, slot, values[:, k : k + 1])
        return values

    @property
    def feature_names(self) -> list[str]:
        if self.width > 0:
            return [f"{self.schema.features[0]}_{k}" for k in range(self.width)]
        return list(self.schema.features)

    # ---- writing

    def _append(self, piece: dict[str, Array]) -> None:
        time = piece["time"]
        if len(time):
            self.sorted = self.sorted and time[0] >= self._last_time and bool((time[1:] >= time[:-1]).all())
            self._last_time = time[-1]
            self.accepted += len(time)
        if "category" in piece:
            if self._category is None:
                self._category = Column(self.spool / "category.npy", np.int32, piece["category"].shape[1])
            self._category.append(piece.pop("category"))
        self._write(piece)

    def _write(self, piece: dict[str, Array]) -> None:
        for name, values in piece.items():
            width = values.shape[1] if values.ndim == 2 else None
            self.writer.column(name, values.dtype, width).append(values)

    def sort(self, quiet: bool) -> None:
        """Put the rows in time order, and the dense ids in the order of first appearance there."""
        self.user_order: Array | None = None
        self.item_order: Array | None = None
        self._item_categories = np.full((len(self.items), len(self.categories)), -1, np.int32)
        category = self._category_column()
        if self.sorted:
            for a in range(0, self.accepted if category else 0, PIECE_ROWS):
                b = min(a + PIECE_ROWS, self.accepted)
                item = np.fromfile(self.writer.folder / "item.npy", np.int32, b - a, offset=HEADER_BYTES + 4 * a)
                assert category is not None
                self._note_categories(item, category.read(a, b))
            return
        users, items = _Renumber(len(self.users)), _Renumber(len(self.items))
        spooled = self.writer.move_columns(self.spool)
        columns = {name: RawColumn(c.path, c.dtype, c.width, HEADER_BYTES) for name, c in spooled.items()}
        if category:
            columns["category"] = category
        with Progress("sorting", self.accepted, "rows", quiet=quiet) as progress:
            for piece in prefetch(in_time_order(columns, self.accepted, self.spool), depth=2):
                piece["user"], piece["item"] = users.apply(piece["user"]), items.apply(piece["item"])
                if category:
                    self._note_categories(piece["item"], piece.pop("category"))
                self._write(piece)
                progress.advance(len(piece["time"]))
        self.user_order, self.item_order = users.order, items.order

    def _category_column(self) -> RawColumn | None:
        if self._category is None:
            return None
        self._category.close()
        return RawColumn(self._category.path, np.dtype(np.int32), self._category.width, HEADER_BYTES)

    def _note_categories(self, item: Array, category: Array) -> None:
        """An item's category is the first one said of it: what is said later would be news from the future."""
        for k in range(category.shape[1]):
            column = self._item_categories[:, k]
            said = category[:, k] >= 0
            fresh, first = np.unique(item[said], return_index=True)
            unset = column[fresh] < 0
            column[fresh[unset]] = category[said, k][first[unset]]

    def finish(self) -> dict[str, Any]:
        """Write what is not a column of events; returns the counts for the card."""
        writer = self.writer
        writer.ids("user_ids", self.users.ids(self.user_order))
        writer.ids("item_ids", self.items.ids(self.item_order))
        if self.schema.event_id:
            writer.ids("event_ids", self.event_ids.ids())
        if self.categories:
            writer.column("item_categories", np.int32, len(self.categories)).append(self._item_categories)
            for k, table in enumerate(self.categories):
                writer.ids(f"category_{k}_ids", table.ids())
        time = RawColumn(writer.folder / "time.npy", np.dtype(np.float64), None, HEADER_BYTES)
        return {
            "events": self.accepted,
            "users": len(self.users),
            "items": len(self.items),
            "first_time": float(time.read(0, 1)[0]),
            "last_time": float(time.read(self.accepted - 1, self.accepted)[0]),
        }


def _refuse_too_large(marks: Marks, slot: int, values: Array) -> None:
    """Mark rows of float32 [rows, width] with a number that float64 held and float32 does not."""
    marks.mark(np.asarray(~np.isfinite(values).all(axis=1)), v.NOT_FINITE, slot)


class _Renumber:
    """Dense ids in the order of first appearance among the pieces seen so far."""

    def __init__(self, count: int) -> None:
        self._new = np.full(count, -1, np.int32)
        self.order = np.empty(count, np.int32)  # new id -> old id
        self._used = 0

    def apply(self, old: Array) -> Array:
        new = np.empty(len(old), np.int32)
        self._used = _renumber(old, self._new, self.order, self._used, new)
        return new


@compiled
def _renumber(old: Array, new_of: Array, order: Array, used: int, new: Array) -> int:
    for row in range(len(old)):
        if new_of[old[row]] < 0:
            new_of[old[row]] = used
            order[used] = old[row]
            used += 1
        new[row] = new_of[old[row]]
    return used


def _numbered(column: Any, words: tuple[str, ...]) -> Any:
    """A column of known words as the numbers of their places; other words stay as they are, and are no numbers."""
    if not isinstance(column, TextColumn):
        return column
    digits = np.frombuffer("".join(str(k) for k in range(len(words))).encode(), np.uint8)
    data = np.concatenate([column.data, digits])
    start, stop = column.start.copy(), column.stop.copy()
    for k, word in enumerate(words):
        same = _spans_equal(column, word.encode())
        start[same] = len(column.data) + k
        stop[same] = len(column.data) + k + 1
    return replace(column, data=data, start=start, stop=stop)


def _spans_equal(column: TextColumn, word: bytes) -> Array:
    rows = np.flatnonzero(column.stop - column.start == len(word))
    same = np.zeros(len(column.start), bool)
    bytes_there = column.data[column.start[rows][:, None] + np.arange(len(word))]
    same[rows] = (bytes_there == np.frombuffer(word, np.uint8)).all(axis=1)
    return same
