"""Answers for all users, and what a service was sent, as Parquet files.

They are written in pieces of bounded memory; a file is there whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dynedge.errors import DataError, UsageError
from dynedge.events.log import Ids
from dynedge.online.answers import COLUMNS
from dynedge.online.journal import Journal
from dynedge.online.live import NOBODY, Live
from dynedge.progress import Progress
from dynedge.training.files import PARTIAL, write_whole

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

    _write(path, schema, tables())
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

    _write(path, schema, tables())
    return sides[0].shape[1], sides[1].shape[1]


def write_events(
    journal: Journal, path: Path, names: tuple[str, str, str, str], card: Mapping[str, Any], *, quiet: bool = True
) -> int:
    """All events that are in the journal now, in its order: user, item, time, event id under these names.

    An event that came without an id gets one by its place. Then a column for each event feature of the run's log, and
    one without values for each item feature, so that `prepare` finds in every file what it is told to read. How many
    rows that is.
    """
    user, item, time, event_id = names
    features, kinds = list(card["features"]), list(card["item_features"])
    if len({*names, *features, *kinds}) < len(names) + len(features) + len(kinds):
        raise UsageError("two columns would have the same name; choose others with --user-col, --item-col and so on.")
    ids = pa.string()
    schema = pa.schema(
        [(user, ids), (item, ids), (time, pa.timestamp("us", "UTC")), (event_id, ids)]
        + [(name, pa.float32()) for name in features]
        + [(name, ids) for name in kinds]
    )
    count = journal.end

    def tables() -> Iterator[Any]:
        with Progress("exporting", count, "events", quiet=quiet) as progress:
            every = (event for piece in journal.since(0) for event in piece)
            left, first = islice(every, count), 1  # what comes meanwhile is for the next time
            while some := list(islice(left, ROWS)):
                values = np.zeros((len(some), len(features)), np.float32)
                for row, event in enumerate(some):
                    if len(event.features) > len(features):
                        told = f"{len(event.features)} features, and the run's log has {len(features)}"
                        raise DataError(f"{journal.path} has events with {told}: it is of another run.")
                    values[row, : len(event.features)] = event.features
                when = np.array([round(event.time * 1e6) for event in some], "datetime64[us]")
                columns = {
                    user: [event.user for event in some],
                    item: [event.item for event in some],
                    time: when,
                    event_id: [event.event_id or f"journal {first + row}" for row, event in enumerate(some)],
                    **dict(zip(features, values.T, strict=True)),
                    **{name: pa.nulls(len(some), ids) for name in kinds},
                }
                yield pa.table(columns, schema=schema)
                first += len(some)
                progress.advance(len(some))

    _write(path, schema, tables())
    return count


def _write(path: Path, schema: Any, tables: Iterator[Any]) -> None:
    def fill(beside: Path) -> None:
        with pq.ParquetWriter(beside, schema) as writer:
            for table in tables:
                writer.write_table(table)

    try:
        write_whole(path, fill)
    finally:
        path.with_name(path.name + PARTIAL).unlink(missing_ok=True)


def _arrow(ids: Ids) -> Any:
    """Own ids as an Arrow array, which shares their memory."""
    if ids.offsets is None:
        return pa.array(np.asarray(ids.values))
    offsets, values = (pa.py_buffer(np.ascontiguousarray(part)) for part in (ids.offsets, ids.values))
    return pa.LargeStringArray.from_buffers(len(ids), offsets, values)
