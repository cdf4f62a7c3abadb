"""RowWriter: parses blocks, encodes ids, writes the valid rows to disk, and sorts them by time if necessary."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.ingest.block_columns import TextColumn
from dynedge.data.ingest.external_sort import CHUNK_ROWS, ColumnFile, sorted_chunks
from dynedge.data.ingest.id_encoder import IdEncoder
from dynedge.data.ingest.item_file import categories_of_table
from dynedge.data.ingest.readers import infer_time_unit
from dynedge.data.ingest.row_checks import DUPLICATE_EVENT_ID, LATE, LEFT_OUT, NOT_FINITE, RowChecks
from dynedge.data.ingest.schema import Block, Schema, positive_rows
from dynedge.data.ingest.time_parser import TIME_UNITS
from dynedge.data.log import HEADER_BYTES, EventLog
from dynedge.data.log_writer import ColumnFiles, ColumnWriter
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled
from dynedge.utils.prefetch import prefetch
from dynedge.utils.progress import Progress


class RowWriter:
    """Writes the valid rows of blocks in input order; `sort` then rewrites them in time order if they were not.

    With `base`, the rows are an addition to that log: its ids keep their dense ids, new ones get the next.
    """

    def __init__(self, writer: ColumnFiles, scratch: Path, schema: Schema, base: EventLog | None = None) -> None:
        self.writer, self.scratch, self.schema, self.base = writer, scratch, schema, base
        self.rows_read = self.rows_written = self.left_out = 0
        self.unit = schema.time_unit
        self.list_length = -1  # of the packed feature column; -1: no row read yet, 0: the column is not packed
        self.event_ids = IdEncoder()  # of the rows written, not of the base
        self._item_thread = ThreadPoolExecutor(1)  # encodes items while this thread encodes users
        items = self._item_thread.submit(IdEncoder.of, base.item_ids if base else None)
        self.users = IdEncoder.of(base.user_ids if base else None)
        self.items = self.users if schema.one_population else items.result()
        names = base.category_ids if base else [None] * len(schema.item_features)
        self.categories = [IdEncoder.of(ids) for ids in names]
        if base and len(schema.features) == 1 != self._base_features:
            self.list_length = self._base_features
        self.is_sorted, self._last_time = True, -np.inf
        self._category_writer: ColumnWriter | None = None

    def add(self, block: Block, repeated: Array | None = None, earliest: float = -np.inf) -> None:
        """Checks a block, recording its errors, and writes its valid rows.

        `repeated` (bool[rows]) marks rows whose event id the base has; rows before `earliest` are rejected.
        """
        schema, checks, rows = self.schema, block.checks, len(block)
        columns = dict(zip(schema.columns, enumerate(block.columns), strict=True))
        chunk: dict[str, Array] = {}
        for name in (schema.user, schema.item, schema.event_id):
            if name:
                number, column = columns[name]
                column.check_ids(checks, number, True)
        for name in schema.item_features:
            number, column = columns[name]
            column.check_ids(checks, number, False)
        number, column = columns[schema.time]
        if self.unit == "auto" and checks.valid.any():
            self.unit = infer_time_unit(column, checks)
        chunk["time"] = np.zeros(rows)
        column.parse_times(checks, number, TIME_UNITS.get(self.unit, 0), chunk["time"])
        if schema.label:
            chunk["label"] = np.zeros(rows, np.float32)
            number, column = columns[schema.label]
            if schema.label_codes:
                column = _words_as_digits(column, schema.label_codes)
            column.parse_numbers(checks, number, chunk["label"])
            _reject_float32_overflow(checks, number, chunk["label"][:, None])
            if schema.positive:
                checks.reject(~positive_rows(schema.positive, chunk["label"]), LEFT_OUT, number)
        if schema.features:
            chunk["features"] = self._features(block, columns)
        if schema.label_is_feature:
            given = chunk.get("features", np.zeros((rows, 0), np.float32))
            chunk["features"] = np.column_stack([given, chunk["label"]])
        if repeated is not None and schema.event_id:
            checks.reject(repeated, DUPLICATE_EVENT_ID, columns[schema.event_id][0])
        checks.reject(chunk["time"] < earliest, LATE, columns[schema.time][0])
        if schema.event_id:
            chunk["event_id"] = np.empty(rows, np.int32)
            number, column = columns[schema.event_id]
            column.encode_ids(self.event_ids, checks, chunk["event_id"], unique=number)
            chunk["event_id"] += len(self.base.event_ids) if self.base and self.base.event_ids else 0
        self._encode(checks, columns, chunk)
        valid = checks.valid
        self.rows_read += rows
        self.left_out += int((checks.status == LEFT_OUT).sum())
        self._append({name: values if valid.all() else values[valid] for name, values in chunk.items()})

    def _features(self, block: Block, columns: dict[str, tuple[int, Any]]) -> Array:
        schema, checks = self.schema, block.checks
        number, column = columns[schema.features[0]]
        if self.list_length < 0:
            given = (row for row in np.flatnonzero(checks.valid).tolist() if column.text(row))  # not missing
            if (first := next(given, None)) is not None:
                self.list_length = (column.list_length(first) or 0) if len(schema.features) == 1 else 0
            if self.base and self.list_length > 1:
                self.list_length = self._base_features
        if self.list_length > 0:
            lists = np.zeros((len(block), self.list_length), np.float32)
            column.parse_lists(checks, number, lists)
            _reject_float32_overflow(checks, number, lists)
            return lists
        values = np.zeros((len(block), len(schema.features)), np.float32)
        for k, name in enumerate(schema.features):
            number, column = columns[name]
            column.parse_numbers(checks, number, values[:, k])
            _reject_float32_overflow(checks, number, values[:, k : k + 1])
        return values

    def _encode(self, checks: RowChecks, columns: dict[str, tuple[int, Any]], chunk: dict[str, Array]) -> None:
        """Encodes users, items and categories; after all checks, so that a rejected row adds no user or item.

        The categories of a base that are from its item table follow those of the events.
        """
        schema, rows = self.schema, len(checks.status)
        chunk["user"], chunk["item"] = np.empty(rows, np.int32), np.empty(rows, np.int32)
        if schema.one_population:  # one encoder: not in two threads
            columns[schema.user][1].encode_ids(self.users, checks, chunk["user"])
            columns[schema.item][1].encode_ids(self.items, checks, chunk["item"])
        else:
            items = self._item_thread.submit(columns[schema.item][1].encode_ids, self.items, checks, chunk["item"])
            columns[schema.user][1].encode_ids(self.users, checks, chunk["user"])
            items.result()
        if schema.item_features:
            chunk["category"] = np.empty((rows, len(schema.item_features)), np.int32)
            for k, (name, encoder) in enumerate(zip(schema.item_features, self.categories, strict=False)):
                codes = np.empty(rows, np.int32)
                columns[name][1].encode_ids(encoder, checks, codes)
                chunk["category"][:, k] = codes

    @property
    def _base_features(self) -> int:
        """Number of the base's event features, without its label."""
        return self.base.features.shape[1] - self.schema.label_is_feature if self.base else 0

    @property
    def feature_names(self) -> list[str]:
        label = [self.schema.label] if self.schema.label_is_feature and self.schema.label else []
        if self.list_length > 0:
            return [f"{self.schema.features[0]}_{k}" for k in range(self.list_length)] + label
        return [*self.schema.features, *label]

    def _append(self, chunk: dict[str, Array]) -> None:
        time = chunk["time"]
        if not len(time):  # nor is the number of features known before there is a valid row
            return
        self.is_sorted = self.is_sorted and time[0] >= self._last_time and bool((time[1:] >= time[:-1]).all())
        self._last_time = time[-1]
        self.rows_written += len(time)
        if "category" in chunk:
            if self._category_writer is None:
                width = chunk["category"].shape[1]
                self._category_writer = ColumnWriter(self.scratch / "category.npy", np.int32, width)
            self._category_writer.append(chunk.pop("category"))
        self._write(chunk)

    def _write(self, chunk: dict[str, Array]) -> None:
        for name, values in chunk.items():
            width = values.shape[1] if values.ndim == 2 else None
            self.writer.column(name, values.dtype, width).append(values)

    def sort(self, quiet: bool) -> None:
        """Sorts the rows by time and renumbers the dense ids by first appearance in that order."""
        self.user_order: Array | None = None
        self.item_order: Array | None = None
        self.item_categories = np.full((len(self.items), len(self.categories)), -1, np.int32)
        if self.base:
            self.item_categories[: self.base.num_items] = self.base.item_categories
        category = self._category_file()
        if not self.rows_written or (self.is_sorted and not self.schema.one_population):
            for a in range(0, self.rows_written if category else 0, CHUNK_ROWS):
                b = min(a + CHUNK_ROWS, self.rows_written)
                item = np.fromfile(self.writer.folder / "item.npy", np.int32, b - a, offset=HEADER_BYTES + 4 * a)
                assert category is not None
                self._set_categories(item, category.read(a, b))
            return
        known = (self.base.num_users, self.base.num_items) if self.base else (0, 0)
        users, items = _Renumbering(len(self.users), known[0]), _Renumbering(len(self.items), known[1])
        if self.schema.one_population:
            items = users
        unsorted = self.writer.move_columns(self.scratch)
        columns = {name: ColumnFile(c.path, c.dtype, c.width, HEADER_BYTES) for name, c in unsorted.items()}
        if category:
            columns["category"] = category
        with Progress("sorting", self.rows_written, "rows", quiet=quiet) as progress:
            for chunk in prefetch(sorted_chunks(columns, self.rows_written, self.scratch), depth=2):
                if items is users:
                    both = users.apply(np.stack([chunk["user"], chunk["item"]], 1).ravel()).reshape(-1, 2)
                    chunk["user"], chunk["item"] = np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])
                else:
                    chunk["user"], chunk["item"] = users.apply(chunk["user"]), items.apply(chunk["item"])
                if category:
                    self._set_categories(chunk["item"], chunk.pop("category"))
                self._write(chunk)
                progress.advance(len(chunk["time"]))
        self.user_order, self.item_order = users.order, items.order

    def _category_file(self) -> ColumnFile | None:
        if self._category_writer is None:
            return None
        self._category_writer.close()
        return ColumnFile(self._category_writer.path, np.dtype(np.int32), self._category_writer.width, HEADER_BYTES)

    def _set_categories(self, item: Array, category: Array) -> None:
        """Sets the category of items without one to their first in time: a later one would leak the future."""
        for k in range(category.shape[1]):
            column = self.item_categories[:, k]
            given = category[:, k] >= 0
            fresh, first = np.unique(item[given], return_index=True)
            unset = column[fresh] < 0
            column[fresh[unset]] = category[given, k][first[unset]]

    def finish(self, item_table: Any = None, user_table: Any = None) -> dict[str, Any]:
        """Writes ids and categories; returns the counts for the log's metadata.

        The Arrow tables have (further) categorical features of items and users, by the ids in their first column.
        """
        writer = self.writer
        user_ids = self.users.external_ids(self.user_order)
        writer.ids("user_ids", user_ids)
        writer.ids("item_ids", self.items.external_ids(self.item_order))
        if self.schema.event_id:
            writer.ids("event_ids", self.event_ids.external_ids())
        names = [encoder.external_ids() for encoder in self.categories]
        codes = self.item_categories
        if item_table is not None:
            of_table, names_of_table = categories_of_table(item_table, self.items.external_ids(self.item_order))
            codes, names = np.column_stack([codes, of_table]), names + names_of_table
        writer.categories("item", codes, names)
        if user_table is not None:
            writer.categories("user", *categories_of_table(user_table, user_ids))
        time = ColumnFile(writer.folder / "time.npy", np.dtype(np.float64), None, HEADER_BYTES)
        return {
            "events": self.rows_written,
            "users": len(self.users),
            "items": len(self.items),
            "first_time": float(time.read(0, 1)[0]),
            "last_time": float(time.read(self.rows_written - 1, self.rows_written)[0]),
        }


def _reject_float32_overflow(checks: RowChecks, column: int, values: Array) -> None:
    """Rejects rows of float32 [rows, width] with a number that is finite in float64 only."""
    checks.reject(np.asarray(~np.isfinite(values).all(axis=1)), NOT_FINITE, column)


class _Renumbering:
    """Assigns new dense ids by first appearance in the chunks applied so far; the first `known` ids stay."""

    def __init__(self, count: int, known: int) -> None:
        self._new = np.full(count, -1, np.int32)
        self.order = np.empty(count, np.int32)  # new id -> old id
        self._new[:known] = self.order[:known] = np.arange(known)
        self._used = known

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


def _words_as_digits(column: Any, words: tuple[str, ...]) -> Any:
    """Returns a column in which each of `words` is replaced by its index; other words stay, and are not numbers."""
    if not isinstance(column, TextColumn):
        return column
    digits = np.frombuffer("".join(str(k) for k in range(len(words))).encode(), np.uint8)
    data = np.concatenate([column.data, digits])
    start, stop = column.start.copy(), column.stop.copy()
    for k, word in enumerate(words):
        same = _equals_word(column, word.encode())
        start[same] = len(column.data) + k
        stop[same] = len(column.data) + k + 1
    return replace(column, data=data, start=start, stop=stop)


def _equals_word(column: TextColumn, word: bytes) -> Array:
    """bool[rows]: whether a field is exactly this word."""
    rows = np.flatnonzero(column.stop - column.start == len(word))
    same = np.zeros(len(column.start), bool)
    fields = column.data[column.start[rows][:, None] + np.arange(len(word))]
    same[rows] = (fields == np.frombuffer(word, np.uint8)).all(axis=1)
    return same
