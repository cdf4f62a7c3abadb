"""`append`: adds the rows of input files to a log, at the cost of the new rows.

The new log folder shares the files of the old one (hard links): rows are added to the end of each file, where readers
of the old log.json do not look, and the new folder takes the place of the old one in one step. If the process is
killed, the log is the old one or the new one. Numbers of users, items and events do not change. Rows older than the
log's last event are rejected, or merged, which rewrites the columns of all events in new files.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.id_index import IdIndex
from dynedge.data.ingest.external_sort import CHUNK_ROWS
from dynedge.data.ingest.id_encoder import MAX_IDS, IdEncoder, texts_of
from dynedge.data.ingest.pipeline import DEFAULT_MAX_BAD, checked_schema, read_files, rejects_copy_path
from dynedge.data.ingest.readers import expand_paths
from dynedge.data.ingest.rejects import RejectsFile
from dynedge.data.ingest.row_writer import RowWriter
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import HEADER_BYTES, METADATA, EventLog, read_log
from dynedge.data.log_writer import ColumnFiles, LogWriter, link_or_copy
from dynedge.errors import DataError, UsageError
from dynedge.utils.array_type import Array
from dynedge.utils.file_lock import FileLock

LATE_RULES = ("reject", "merge")
REJECTS = "rejects.csv"


@dataclass(frozen=True)
class Addition:
    """The log after `append`, and what was added to it."""

    log: EventLog
    events: int
    users: int
    items: int
    late: int  # added events that are older than the log's last event was
    rows_read: int
    rejected: int
    rejected_why: dict[str, int]
    left_out: int  # rows whose label is not positive
    time_unit: str


def append(
    log: str | os.PathLike[str],
    files: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    schema: Schema | None = None,
    *,
    late: str = "reject",
    max_bad: float = DEFAULT_MAX_BAD,
    quiet: bool = True,
) -> Addition:
    """Adds the rows of files to a log folder, wholly or not at all.

    `late` says what happens to rows older than the log's last event: "reject" lists them in rejects.csv, "merge"
    inserts them in time order. Event ids that the log has are rejected as duplicates; if all are, nothing changes.
    Raises DataError when a file cannot be read or more than `max_bad` of its rows are bad; the log is then unchanged.
    """
    if late not in LATE_RULES:
        raise UsageError(f"--late {late!r} is not one of {', '.join(LATE_RULES)}.")
    paths = expand_paths([files] if isinstance(files, str | os.PathLike) else files)
    folder = Path(log).resolve()
    read_log(folder)  # raises if it is not a log, before anything is written there
    with FileLock(folder, "wait until it has finished"):
        base = read_log(folder)
        schema = _schema_for(base, checked_schema(schema or Schema(), paths))
        try:
            addition = _append(base, paths, schema, late, max_bad, quiet)
        except _NothingNew as nothing:
            addition = nothing.addition
    rejects_copy_path(folder).unlink(missing_ok=True)  # from an earlier, failed attempt
    return replace(addition, log=read_log(folder))


class _NothingNew(Exception):  # noqa: N818
    """Every row of the files is in the log already; raised so that the log is not written again."""

    def __init__(self, addition: Addition) -> None:
        self.addition = addition


def _append(base: EventLog, paths: list[Path], schema: Schema, late: str, max_bad: float, quiet: bool) -> Addition:
    folder = base.path
    assert folder is not None
    with LogWriter(folder, force=True) as writer:
        shutil.copymode(folder, writer.folder)
        if (folder / REJECTS).exists():
            shutil.copyfile(folder / REJECTS, writer.folder / REJECTS)
        scratch = writer.folder / "scratch"
        (scratch / "added").mkdir(parents=True)
        with ColumnFiles(scratch / "added") as added:
            rows = RowWriter(added, scratch, schema, base)
            with RejectsFile(writer.folder / REJECTS, schema) as rejects:
                earliest = base.metadata["last_time"] if late == "reject" else -np.inf
                read_files(paths, rows, rejects, max_bad, rejects_copy_path(folder), quiet, earliest)
            rows.sort(quiet)
            columns = _read_columns(added.folder, added.close())
        late_events = int(np.searchsorted(columns["time"], base.metadata["last_time"])) if rows.rows_written else 0
        addition = Addition(
            log=base,
            events=rows.rows_written,
            users=len(rows.users) - base.num_users,
            items=len(rows.items) - base.num_items,
            late=late_events,
            rows_read=rows.rows_read,
            rejected=rejects.count,
            rejected_why=dict(rejects.reasons.most_common()),
            left_out=rows.left_out,
            time_unit=rows.unit,
        )
        if not rows.rows_written:
            raise _NothingNew(addition)
        _write_events(writer, base, columns, merge=late_events > 0)
        _write_ids(writer, base, rows)
        writer.finish(**_metadata(base, addition, columns["time"], paths))
        shutil.rmtree(scratch)
        _link_other_files(folder, writer.folder)
    return addition


def _schema_for(base: EventLog, schema: Schema) -> Schema:
    """Returns the schema with the log's time unit if that was given; raises UsageError if it does not fit the log."""
    if not len(base):
        raise DataError(f"{base.path} has no events to add to; make a log with dynedge prepare.")
    one_column = {
        "labels": ("--label-col", base.label is not None, bool(schema.label)),
        "event ids": ("--event-id-col", base.event_id is not None, bool(schema.event_id)),
    }
    for what, (flag, has, given) in one_column.items():
        if has and not given:
            raise UsageError(f"{base.path} has {what}: name their column with {flag}.")
        if given and not has:
            raise UsageError(f"{base.path} has no {what}: leave out {flag}.")
    schema = replace(
        schema,
        label_is_feature=bool(base.metadata.get("label_is_feature")),
        one_population=base.one_population,
    )
    features, item_features = base.metadata["features"], base.metadata["item_features"]
    if schema.label_is_feature:
        features = features[:-1]
    of_events = item_features[: len(item_features) - base.metadata.get("item_table_features", 0)]
    _check_names(base, "features", "--features", features, schema.features)
    _check_names(base, "item features", "--item-features", of_events, schema.item_features)
    schema = replace(schema, positive=base.metadata.get("positive"))
    time = base.metadata["time"]
    if schema.time_unit == "auto" and not time.get("inferred"):
        return replace(schema, time_unit=time["unit"])
    return schema


def _check_names(base: EventLog, what: str, flag: str, names: Sequence[str], given: Sequence[str]) -> None:
    packed = flag == "--features" and len(given) == 1 and len(names) > 0  # one column of lists
    if len(given) != len(names) and not packed:
        shown = f" ({', '.join(names[:5])}{', …' if len(names) > 5 else ''})" if names else ""
        raise UsageError(f"{base.path} has {len(names)} {what}{shown}, and {flag} names {len(given)}.")
    if sorted(given) == sorted(names) and list(given) != list(names):
        raise UsageError(f"the {what} of {base.path} have another order: pass {flag} {','.join(names)}.")


def _read_columns(folder: Path, entries: dict[str, dict[str, Any]]) -> dict[str, Array]:
    """Maps columns that were just written."""
    return {
        name: np.memmap(folder / f"{name}.npy", entry["dtype"], "r", HEADER_BYTES, tuple(entry["shape"]))
        for name, entry in entries.items()
        if entry["shape"][0]
    }


def _write_events(writer: LogWriter, base: EventLog, added: dict[str, Array], *, merge: bool) -> None:
    """Writes the columns of the events: the added rows at the end, or with `merge` after all that are not later."""
    position = np.searchsorted(base.time, added["time"], side="right") if merge else None
    events = {"user": base.user, "item": base.item, "time": base.time, "features": base.features}
    events |= {name: column for name in ("label", "event_id") if (column := getattr(base, name)) is not None}
    for name in base.metadata["columns"]:
        if name not in added:
            continue
        new = added[name]
        chunks: Iterator[Array]
        if position is None:
            column = writer.continued_column(name, base)
            chunks = (new[start : start + CHUNK_ROWS] for start in range(0, len(new), CHUNK_ROWS))
        else:
            column = writer.column(name, new.dtype, new.shape[1] if new.ndim == 2 else None)
            chunks = _merged(events[name], new, position)
        for chunk in chunks:
            column.append(chunk)


def _merged(old: Array, new: Array, position: Array) -> Iterator[Array]:
    """Yields the old rows in chunks, with each new row inserted before the old row at its position."""
    for start in range(0, len(old), CHUNK_ROWS):
        stop = start + CHUNK_ROWS
        first = np.searchsorted(position, start)
        last = np.searchsorted(position, stop) if stop < len(old) else len(position)
        yield np.insert(old[start:stop], position[first:last] - start, new[first:last], axis=0)


def _write_ids(writer: LogWriter, base: EventLog, rows: RowWriter) -> None:
    def new_rows(known: int, count: int, order: Array | None) -> Array:
        return np.arange(known, count) if order is None else order[known:]

    sides = {
        "user": (base.user_ids, rows.users, rows.user_order),
        "item": (base.item_ids, rows.items, rows.item_order),
    }
    for side, (known, encoder, order) in sides.items():
        _continue_ids(writer, base, f"{side}_ids", known, encoder, new_rows(len(known), len(encoder), order))
    if base.event_ids is not None:
        if len(base.event_ids) + len(rows.event_ids) > MAX_IDS:
            raise DataError(
                f"{base.path} would have more than {MAX_IDS} events with event ids, the most there can be."
            )
        _continue_ids(writer, base, "event_ids", base.event_ids, rows.event_ids, np.arange(len(rows.event_ids)))
    if base.user_category_ids:  # new users have no row in the user table
        new = np.full((len(rows.users) - base.num_users, len(base.user_category_ids)), -1, np.int32)
        writer.categories("user", np.concatenate([base.user_categories, new]), base.user_category_ids)
    if base.category_ids:
        writer.column("item_categories", np.int32, len(base.category_ids)).append(rows.item_categories)
    for k, (known, encoder) in enumerate(zip(base.category_ids, rows.categories, strict=True)):
        _continue_ids(writer, base, f"category_{k}_ids", known, encoder, np.arange(len(known), len(encoder)))


def _continue_ids(
    writer: LogWriter, base: EventLog, name: str, known: IdIndex, encoder: IdEncoder, new_rows: Array
) -> None:
    """Adds ids to a column of ids; integers are rewritten as texts if one of the new ids is not an integer."""
    new = encoder.external_ids(new_rows, as_texts=known.are_strings)
    if new.offsets is None:
        writer.continued_column(name, base).append(new.values)
        return
    if known.offsets is not None:
        texts, offsets, size = [new], writer.continued_column(f"{name}_offsets", base), int(known.offsets[-1])
        column = writer.continued_column(name, base)
    else:
        texts, offsets, size = [*texts_of(known), new], writer.column(f"{name}_offsets", np.int64), 0
        column = writer.column(name, np.uint8)
        offsets.append(np.zeros(1, np.int64))
    for part in texts:
        assert part.offsets is not None
        column.append(part.values)
        offsets.append(part.offsets[1:] + size)
        size += int(part.offsets[-1])


def _metadata(base: EventLog, addition: Addition, time: Array, paths: list[Path]) -> dict[str, Any]:
    """The new content of log.json, without the columns."""
    old = {key: value for key, value in base.metadata.items() if key not in ("format", "version", "columns")}
    reasons = Counter(old.get("rejected_why", {}))
    reasons.update(addition.rejected_why)
    return old | {
        "events": len(base) + addition.events,
        "users": base.num_users + addition.users,
        "items": base.num_items + addition.items,
        "first_time": min(old["first_time"], float(time[0])),
        "last_time": max(old["last_time"], float(time[-1])),
        "rows_read": old["rows_read"] + addition.rows_read,
        "rejected": old["rejected"] + addition.rejected,
        "rejected_why": dict(reasons.most_common()),
        **({"left_out": old.get("left_out", 0) + addition.left_out} if "positive" in old else {}),
        "source": {**old["source"], "files": [*old["source"].get("files", []), *(path.name for path in paths)]},
    }


def _link_other_files(old: Path, new: Path) -> None:
    """Gives everything else in the old folder, such as cached plans, a second name in the new one."""
    for path in old.iterdir():
        target = new / path.name
        if path.name == METADATA or target.exists():
            continue
        if path.is_dir():
            with suppress(shutil.Error):  # another process is writing a plan, which it then plans again
                shutil.copytree(path, target, copy_function=link_or_copy, symlinks=True)
        else:
            link_or_copy(path, target)
