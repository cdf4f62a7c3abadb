"""Files of a run's recommendations (Parquet, CSV, JSON lines) and vectors (Parquet).

Files are written in batches of bounded memory and renamed into place when complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from dynedge.data.frames import ids_to_arrow
from dynedge.errors import UsageError
from dynedge.inference.recommend import COLUMNS, Recommendations, recommend_rows
from dynedge.inference.rules import Rules
from dynedge.inference.session import NO_RULES, Session
from dynedge.utils.atomic_io import PARTIAL, write_atomically
from dynedge.utils.progress import Progress

BATCH_ROWS = 1 << 16  # rows written together


def check_target(path: Path, suffixes: tuple[str, ...] = (".parquet",)) -> None:
    """Refuses, before any work, a path that cannot be written."""
    if path.suffix not in suffixes:
        raise UsageError(f"--out {path} should end in {' or '.join(suffixes)}.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--out {path}: the folder {path.parent} does not exist.")
    if path.is_dir():
        raise UsageError(f"--out {path} is a folder; it should be a file.")


def write_recommendations(
    session: Session,
    path: Path,
    k: int,
    time: float | None = None,
    rules: Rules = NO_RULES,
    *,
    quiet: bool = True,
) -> int:
    """Writes the recommendations of all users (user_id, item_id, score, rank, item columns); returns the rows."""
    users, items = ids_to_arrow(session.users.all()), ids_to_arrow(session.items.all())
    no_rows = session.item_metadata.take(np.empty(0, np.int64))
    types = (users.type, items.type, pa.float32(), pa.int32(), *(column.type for column in no_rows.values()))
    schema = pa.schema(list(zip((*COLUMNS, *no_rows), types, strict=True)))
    count, batch = 0, max(1, BATCH_ROWS // k)

    def tables() -> Iterator[Any]:
        nonlocal count
        with Progress("recommending", len(users), "users", quiet=quiet) as progress:
            for first in range(0, len(users), batch):
                rows = np.arange(first, min(first + batch, len(users)))
                best = recommend_rows(session, rows, k, time, rules, after=progress.advance)
                yield _table(best, users, items, schema)
                count += len(best)

    write_table(path, schema, tables())
    return count


def _table(recommendations: Recommendations, users: Any, items: Any, schema: Any) -> Any:
    """Arrow table of recommendations; `users` and `items` are the external ids of all rows."""
    flat = recommendations.flat
    user_ids = users.take(pa.array(recommendations.user_rows[flat.position]))
    item_ids, metadata = items.take(pa.array(flat.item_row)), recommendations.metadata.take(flat.item_row)
    return pa.table([user_ids, item_ids, flat.score, flat.rank, *metadata.values()], schema=schema)


def write_vectors(session: Session, path: Path) -> tuple[int, int]:
    """Writes one row per entity (user_id or item_id, vector); returns the widths of user and item vectors."""
    ids = ids_to_arrow(session.users.all()), ids_to_arrow(session.items.all())
    schema = pa.schema([("user_id", ids[0].type), ("item_id", ids[1].type), ("vector", pa.list_(pa.float32()))])
    sides = session.vectors()

    def tables() -> Iterator[Any]:
        for side, vectors in enumerate(sides):
            for start in range(0, len(vectors), BATCH_ROWS):
                batch = vectors[start : start + BATCH_ROWS]
                columns = [pa.nulls(len(batch), column.type) for column in ids]
                columns[side] = ids[side].slice(start, len(batch))
                ends = np.arange(len(batch) + 1, dtype=np.int32) * batch.shape[1]
                yield pa.table([*columns, pa.ListArray.from_arrays(ends, batch.ravel())], schema=schema)

    write_table(path, schema, tables())
    return sides[0].shape[1], sides[1].shape[1]


def write_table(path: Path, schema: Any, tables: Iterable[Any]) -> None:
    """Writes tables to a file in the format of its suffix; it appears only when it is complete."""

    def fill(partial: Path) -> None:
        with FORMATS[path.suffix](partial, schema) as writer:
            for table in tables:
                writer.write_table(table)

    try:
        write_atomically(path, fill)
    finally:
        path.with_name(path.name + PARTIAL).unlink(missing_ok=True)


class _JsonLinesWriter:
    """Writes one JSON object per row; missing values are left out."""

    def __init__(self, path: Path, schema: Any) -> None:
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write_table(self, table: Any) -> None:
        for row in table.to_pylist():
            given = {name: value for name, value in row.items() if value is not None}
            self._file.write(json.dumps(given, ensure_ascii=False) + "\n")


FORMATS = {".parquet": pq.ParquetWriter, ".csv": pa.csv.CSVWriter, ".jsonl": _JsonLinesWriter}
