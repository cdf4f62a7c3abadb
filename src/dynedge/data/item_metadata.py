"""Item metadata: the categorical item features of a log, and the table given to `prepare --item-table`.

The table is stored as item_table.parquet in the log folder and in the folder of a run's ids: one row per item, by its
external id, with columns of texts, numbers and booleans. log.json has the names of its columns and its SHA-256.
"""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dynedge.data.frames import ids_to_arrow
from dynedge.errors import DataError, UsageError
from dynedge.utils.array_type import Array
from dynedge.utils.atomic_io import file_sha256
from dynedge.utils.file_checks import check_regular

if TYPE_CHECKING:
    from dynedge.data.log import EventLog

FILE = "item_table.parquet"
ENTRY = "item_table"  # in log.json
ITEM_ID, USER_ID = "item_id", "user_id"


class ItemMetadata:
    """The columns that describe the items of a log, in the order of its item rows."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._codes: dict[str, tuple[Array, dict[str, int]]] = {}

    @property
    def names(self) -> list[str]:
        """The names of the columns: the log's categorical item features, then those of the item table."""
        features = [str(name) for name in self._log.metadata.get("item_features", ())]
        return features + [name for name in _table_columns(self._log) if name not in features]

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Arrow arrays by name, with a null where an item has no value."""
        import pyarrow as pa

        log, columns = self._log, dict[str, Any]()
        for k, (name, ids) in enumerate(zip(log.metadata.get("item_features", ()), log.category_ids, strict=False)):
            code = np.asarray(log.item_categories)[:, k]
            columns[str(name)] = ids_to_arrow(ids).take(pa.array(code, mask=code < 0))
        if _table_columns(log):
            table = _read_table(log)
            row_of = {log.item_ids.canonical(text): row for row, text in enumerate(table[ITEM_ID].to_pylist())}
            rows = np.array([row_of.get(item, -1) for item in log.item_ids.decoded], np.int64)
            taken = table.take(pa.array(rows, mask=rows < 0))
            columns |= {name: _finite(taken[name]) for name in taken.column_names if name not in columns}
            del columns[ITEM_ID]
        return columns

    def take(self, rows: Array) -> dict[str, Any]:
        """Arrow arrays of the values of items; null for items that are newer than the log."""
        import pyarrow as pa

        at = pa.array(np.asarray(rows, np.int64), mask=np.asarray(rows) >= self._log.num_items)
        return {name: self.columns[name].take(at) for name in self.names}

    def records(self, rows: Array) -> list[dict[str, Any]]:
        """The values of items by name, without missing ones."""
        columns = {name: column.to_pylist() for name, column in self.take(rows).items()}
        return [
            {name: column[at] for name, column in columns.items() if column[at] is not None}
            for at in range(len(rows))
        ]

    def codes(self, name: str, items: int) -> tuple[Array, dict[str, int]]:
        """Returns the values of a column as int32[items], -1 where an item has none, and the code of each text."""
        if name not in self._codes:
            self._codes[name] = self._encode(name)
        codes, names = self._codes[name]
        return np.concatenate([codes, np.full(items - len(codes), -1, np.int32)]), names

    def _encode(self, name: str) -> tuple[Array, dict[str, int]]:
        import pyarrow as pa

        if name not in self.names:
            known = f"their columns are: {', '.join(self.names)}" if self.names else "they have none"
            raise UsageError(
                f"items have no column '{name}': {known}. Columns come from prepare: --item-features, --item-table."
            )
        column = self.columns[name]
        if pa.types.is_floating(column.type):
            raise UsageError(f"the column '{name}' has numbers with fractions; a rule needs one of categories.")
        encoded = column.cast(pa.large_string()).dictionary_encode()
        codes = np.asarray(encoded.indices.fill_null(-1)).astype(np.int32)
        return codes, {text: code for code, text in enumerate(encoded.dictionary.to_pylist())}


def _finite(column: Any) -> Any:
    """Returns a column as one array, with a null for each number that JSON cannot hold: NaN and infinity."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = column.combine_chunks()
    if not pa.types.is_floating(array.type):
        return array
    return pc.if_else(pc.fill_null(pc.is_finite(array), False), array, pa.scalar(None, array.type))


def _table_columns(log: EventLog) -> list[str]:
    return list(log.metadata.get(ENTRY, {}).get("columns", ())) if log.path else []


def _read_table(log: EventLog) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert log.path is not None
    path = log.path / FILE
    try:
        check_regular(path)
        if file_sha256(path) != log.metadata[ENTRY].get("sha256"):
            raise DataError(
                f"{path} is damaged: it does not match its sha256; copy it again, or prepare the log again."
            )
        return pq.read_table(path)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; copy it again, or prepare the log again.") from None
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is damaged: {' '.join(str(error).split())}.") from None


def copy_item_table(log: EventLog, folder: Path) -> dict[str, Any]:
    """Copies the item table of a log, if it has one, into another log folder; returns its entry for log.json."""
    if not _table_columns(log):
        return {}
    assert log.path is not None
    _read_table(log)  # raises if it is damaged
    shutil.copyfile(log.path / FILE, folder / FILE)
    return {ENTRY: log.metadata[ENTRY]}


def write_item_table(table: Any, folder: Path) -> dict[str, Any]:
    """Writes a table of items (data/ingest/item_file.py) into a log folder; returns its entry for log.json."""
    import pyarrow.parquet as pq

    pq.write_table(table, folder / FILE)
    columns = [name for name in table.column_names if name != ITEM_ID]
    return {ENTRY: {"columns": columns, "rows": table.num_rows, "sha256": file_sha256(folder / FILE)}}
