"""Export of a journal to a Parquet file that `dynedge prepare` reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dynedge.errors import DataError, UsageError
from dynedge.inference.event_input import Event
from dynedge.inference.table_files import BATCH_ROWS, write_table
from dynedge.serving.journal import Entry, Journal, entries_after
from dynedge.utils.array_type import Array
from dynedge.utils.progress import Progress


def stored_events(entries: Iterable[Entry]) -> list[tuple[Entry, Event]]:
    """Returns the entries that a service wrote, with their events."""
    return [(entry, entry.event) for entry in entries if entry.event is not None]


def write_events(
    journal: Journal,
    path: Path,
    names: tuple[str, str, str, str],
    metadata: Mapping[str, Any],
    *,
    events_of: Callable[[list[Entry]], list[tuple[Entry, Event]]] = stored_events,
    quiet: bool = True,
) -> int:
    """Writes all events of a journal, in its order; returns their number.

    `names` are the columns of user, item, time and event id; an event without an id gets one from its position. They
    are followed by a column for each event feature of the run's log and an empty column for each item feature, so
    that `prepare` finds the same columns in every file. `events_of` validates entries of other programs.
    """
    user, item, time, event_id = names
    features, item_features = list(metadata["features"]), list(metadata["item_features"])
    columns = [*names, *features, *item_features]
    if len(set(columns)) < len(columns):
        raise UsageError("two columns would have the same name; choose others with --user-col, --item-col and so on.")
    text = pa.string()
    schema = pa.schema(
        [(user, text), (item, text), (time, pa.timestamp("us", "UTC")), (event_id, text)]
        + [(name, pa.float32()) for name in features]
        + [(name, text) for name in item_features]
    )
    end, written = journal.end, 0  # events that arrive during the export are left for the next one

    def tables() -> Iterator[Any]:
        nonlocal written
        with Progress("exporting", journal.count, "events", quiet=quiet) as progress:
            entries = takewhile(lambda entry: entry.position <= end, entries_after(journal))
            while some := list(islice(entries, BATCH_ROWS)):
                valid = events_of(some)
                repeated = journal.repeated([entry for entry, _ in valid])
                batch = [_named(journal, *pair) for pair in valid if pair[0].position not in repeated]
                values = _features(journal, batch, len(features))
                data = {
                    user: [event.user for event in batch],
                    item: [event.item for event in batch],
                    time: np.array([round(event.time * 1e6) for event in batch], "datetime64[us]"),
                    event_id: [event.event_id for event in batch],
                    **dict(zip(features, values.T, strict=True)),
                    **{name: pa.nulls(len(batch), text) for name in item_features},
                }
                yield pa.table(data, schema=schema)
                written += len(batch)
                progress.advance(len(some))

    write_table(path, schema, tables())
    return written


def _named(journal: Journal, entry: Entry, event: Event) -> Event:
    """Returns an event with an event id."""
    return event if event.event_id else event._replace(event_id=f"journal {journal.text(entry.position)}")


def _features(journal: Journal, events: Sequence[Event], width: int) -> Array:
    values = np.zeros((len(events), width), np.float32)
    for row, event in enumerate(events):
        if len(event.features) > width:
            counts = f"{len(event.features)} features, but the run's log has {width}"
            raise DataError(f"{journal.name} has events with {counts}; it is the journal of another run.")
        values[row, : len(event.features)] = event.features
    return values
