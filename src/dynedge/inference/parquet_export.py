"""Parquet files of a run's recommendations and vectors.

Files are written in batches of bounded memory and renamed into place when complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dynedge.data.frames import ids_to_arrow
from dynedge.errors import UsageError
from dynedge.inference.recommend import COLUMNS, Recommendations, recommend_rows
from dynedge.inference.session import Session
from dynedge.utils.atomic_io import PARTIAL, write_atomically
from dynedge.utils.progress import Progress

BATCH_ROWS = 1 << 16  # rows written together


def check_target(path: Path) -> None:
    """Refuses, before any work, a path that cannot be written."""
    if path.suffix != ".parquet":
        raise UsageError(f"--out {path} should end in .parquet.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--out {path}: the folder {path.parent} does not exist.")
    if path.is_dir():
        raise UsageError(f"--out {path} is a folder; it should be a file.")


def write_recommendations(
    session: Session, path: Path, k: int, time: float | None = None, *, filter_seen: bool = False, quiet: bool = True
) -> int:
    """Writes the recommendations of all users (user_id, item_id, score, rank); returns the number of rows."""
    users, items = ids_to_arrow(session.users.all()), ids_to_arrow(session.items.all())
    schema = pa.schema(list(zip(COLUMNS, (users.type, items.type, pa.float32(), pa.int32()), strict=True)))
    count, batch = 0, max(1, BATCH_ROWS // k)

    def tables() -> Iterator[Any]:
        nonlocal count
        with Progress("recommending", len(users), "users", quiet=quiet) as progress:
            for first in range(0, len(users), batch):
                rows = np.arange(first, min(first + batch, len(users)))
                best = recommend_rows(session, rows, k, time, filter_seen=filter_seen, after=progress.advance)
                yield _table(best, users, items, schema)
                count += len(best)

    write_parquet(path, schema, tables())
    return count


def _table(recommendations: Recommendations, users: Any, items: Any, schema: Any) -> Any:
    """Arrow table of recommendations; `users` and `items` are the external ids of all rows."""
    flat = recommendations.flat
    user_ids = users.take(pa.array(recommendations.user_rows[flat.position]))
    return pa.table([user_ids, items.take(pa.array(flat.item_row)), flat.score, flat.rank], schema=schema)


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

    write_parquet(path, schema, tables())
    return sides[0].shape[1], sides[1].shape[1]


def write_parquet(path: Path, schema: Any, tables: Iterator[Any]) -> None:
    """Writes tables to a Parquet file, which appears only when it is complete."""

    def fill(partial: Path) -> None:
        with pq.ParquetWriter(partial, schema) as writer:
            for table in tables:
                writer.write_table(table)

    try:
        write_atomically(path, fill)
    finally:
        path.with_name(path.name + PARTIAL).unlink(missing_ok=True)
