"""Answers for all users, and what a service was sent, as Parquet files.

They are written in pieces of bounded memory; a file is there whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dynedge.data.id_index import IdIndex
from dynedge.errors import UsageError
from dynedge.inference.recommend import COLUMNS
from dynedge.inference.session import NOBODY, Live
from dynedge.utils.atomic_io import PARTIAL, write_atomically
from dynedge.utils.progress import Progress

ROWS = 1 << 16  # written together


def check_target(path: Path) -> None:
    """Refuse, before any work, a file that could not be written."""
    if path.suffix != ".parquet":
        raise UsageError(f"--out {path} should end in .parquet.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--out {path}: there is no folder {path.parent}.")
    if path.is_dir():
        raise UsageError(f"--out {path} is a folder; it should be a file.")


def write_recommendations(
    live: Live, path: Path, k: int, time: float | None = None, *, filter_seen: bool = False, quiet: bool = True
) -> int:
    """All users' recommendations: user, item, score, rank. How many rows that is."""
    users, items = _arrow(live.ids.user_ids), _arrow(live.ids.item_ids)
    schema = pa.schema(list(zip(COLUMNS, (users.type, items.type, pa.float32(), pa.int32()), strict=True)))
    count, together = 0, max(1, ROWS // k)

    def tables() -> Iterator[Any]:
        nonlocal count
        with Progress("recommending", len(users), "users", quiet=quiet) as progress:
            for first in range(0, len(users), together):
                asked = np.arange(first, min(first + together, len(users)))
                best, scores = live.recommend(asked, k, time, filter_seen=filter_seen, after=progress.advance)
                row, place = np.nonzero(best != NOBODY)
                own = users.take(pa.array(asked[row])), items.take(pa.array(best[row, place]))
                yield pa.table([*own, scores[row, place], (place + 1).astype(np.int32)], schema=schema)
                count += len(row)

    write_parquet(path, schema, tables())
    return count


def write_vectors(live: Live, path: Path) -> tuple[int, int]:
    """Every vector: `user` or `item`, whichever it is of, and `vector`. How wide a user's is, and an item's."""
    own = _arrow(live.ids.user_ids), _arrow(live.ids.item_ids)
    schema = pa.schema([("user", own[0].type), ("item", own[1].type), ("vector", pa.list_(pa.float32()))])
    sides = live.vectors()

    def tables() -> Iterator[Any]:
        for side, vectors in enumerate(sides):
            for start in range(0, len(vectors), ROWS):
                piece = vectors[start : start + ROWS]
                ids = [pa.nulls(len(piece), one.type) for one in own]
                ids[side] = own[side].slice(start, len(piece))
                ends = np.arange(len(piece) + 1, dtype=np.int32) * piece.shape[1]
                yield pa.table([*ids, pa.ListArray.from_arrays(ends, piece.ravel())], schema=schema)

    write_parquet(path, schema, tables())
    return sides[0].shape[1], sides[1].shape[1]


def write_parquet(path: Path, schema: Any, tables: Iterator[Any]) -> None:
    def fill(beside: Path) -> None:
        with pq.ParquetWriter(beside, schema) as writer:
            for table in tables:
                writer.write_table(table)

    try:
        write_atomically(path, fill)
    finally:
        path.with_name(path.name + PARTIAL).unlink(missing_ok=True)


def _arrow(ids: IdIndex) -> Any:
    """ExternalId ids as an Arrow array, which shares their memory."""
    if ids.offsets is None:
        return pa.array(np.asarray(ids.values))
    offsets, values = (pa.py_buffer(np.ascontiguousarray(part)) for part in (ids.offsets, ids.values))
    return pa.LargeStringArray.from_buffers(len(ids), offsets, values)
