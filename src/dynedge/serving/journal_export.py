"""The events that a service was sent, as a Parquet file that `dynedge prepare` reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dynedge.errors import DataError, UsageError
from dynedge.inference.export import ROWS, write_parquet
from dynedge.serving.journal import Journal
from dynedge.utils.progress import Progress


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

    write_parquet(path, schema, tables())
    return count
