"""`prepare`: reads input files into an event log, sorted by time, with dense ids; lists every rejected row."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.frames import as_arrow, is_frame
from dynedge.data.ingest.id_encoder import IdEncoder
from dynedge.data.ingest.item_file import feature_columns, read_item_table, read_user_features
from dynedge.data.ingest.parquet_reader import FrameInput
from dynedge.data.ingest.readers import expand_paths, input_bytes, read_blocks, unused_columns
from dynedge.data.ingest.rejects import RejectsFile
from dynedge.data.ingest.row_checks import LATE, REASONS, RowChecks
from dynedge.data.ingest.row_writer import RowWriter
from dynedge.data.ingest.schema import Block, Schema, positive_rows
from dynedge.data.ingest.text_reader import with_feature_columns
from dynedge.data.ingest.time_parser import TIME_UNITS
from dynedge.data.item_metadata import write_item_table
from dynedge.data.log import EventLog, read_log
from dynedge.data.log_writer import LogWriter
from dynedge.data.splits import DEFAULT_SPLIT, Split
from dynedge.data.timestamps import format_timestamp
from dynedge.errors import DataError, UsageError
from dynedge.utils.array_type import Array
from dynedge.utils.progress import Progress

UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds", "iso": "ISO 8601"}
DEFAULT_MAX_BAD = 0.001
BATCH_BLOCKS = 32  # of input, whose event ids are compared with those of the log
A_DATE = 1e8  # seconds: numbers above are taken for dates
MIXED_FROM, MIXED_RATIO = 1e5, 100.0  # seconds of the first time, and the last one over it, if units are mixed
GIVE_UP_ROWS = 1_000_000  # reading stops after this many rows if none of them is valid


def prepare(
    files: Any,
    out: str | os.PathLike[str],
    schema: Schema | None = None,
    *,
    item_table: Any = None,
    user_table: Any = None,
    user_features: Sequence[str] = (),
    max_bad: float = DEFAULT_MAX_BAD,
    split: Split | str = DEFAULT_SPLIT,
    source: dict[str, Any] | None = None,
    force: bool = False,
    quiet: bool = True,
) -> EventLog:
    """Reads files into a log folder at `out`, which appears complete or not at all, and opens it.

    `files` is a path or a list of paths and globs; or one data frame: pandas, polars, an Arrow table, or a dictionary
    of columns. A frame gives the same log as a Parquet file of its columns. `item_table`, a path or a data frame with
    the same column of item ids, describes items: data/item_metadata.py. Item features of the schema that are its
    columns are read from there. `user_table` describes users in the same way, and `user_features` names its columns
    that models read, as categories.

    Raises DataError when a file cannot be read or more than `max_bad` of the rows are bad; the bad rows are then
    listed in OUT.rejects.csv, and no log is written.
    """
    if isinstance(split, str):
        split = Split.parse(split)
    paths = inputs(files)
    schema = checked_schema(schema or Schema(), paths)
    described = None if item_table is None else read_item_table(item_table, schema.item)
    of_table = [name for name in schema.item_features if described is not None and name in described.column_names]
    features = feature_columns(described, of_table) if of_table else None
    of_users = _user_features(user_table, schema.user, user_features)
    schema = replace(schema, item_features=tuple(name for name in schema.item_features if name not in of_table))
    rejects_copy = rejects_copy_path(out)
    with LogWriter(out, force=force) as writer:
        scratch = writer.folder / "scratch"
        scratch.mkdir()
        rows = RowWriter(writer, scratch, schema)
        with RejectsFile(writer.folder / "rejects.csv", schema) as rejects:
            read_files(paths, rows, rejects, max_bad, rejects_copy, quiet)
        rows.sort(quiet)
        shutil.rmtree(scratch)
        counts = rows.finish(features, of_users)
        table_features = [] if features is None else features.column_names[1:]
        writer.finish(
            **counts,
            rows_read=rows.rows_read,
            rejected=rejects.count,
            rejected_why=dict(rejects.reasons.most_common()),
            **({"positive": schema.positive, "left_out": rows.left_out} if schema.positive else {}),
            **({"label": schema.label} if schema.label else {}),
            unused_columns=unused_columns(paths[0], schema),
            features=rows.feature_names,
            item_features=[*schema.item_features, *table_features],
            **({"item_table_features": len(table_features)} if table_features else {}),
            **({} if of_users is None else {"user_features": of_users.column_names[1:]}),
            **({"label_is_feature": True} if schema.label_is_feature else {}),
            **({"one_population": True} if schema.one_population else {}),
            **({} if described is None else write_item_table(described, writer.folder)),
            split=str(split),
            time={"unit": rows.unit, "inferred": schema.time_unit == "auto"},
            source={**(source or {}), "files": [path.name for path in paths if isinstance(path, Path)]},
        )
    rejects_copy.unlink(missing_ok=True)  # from an earlier, failed attempt at this log
    return read_log(out)


def mixed_time_units(log: EventLog) -> str | None:
    """Returns a warning if some times of a log are those of 1970 and others decades later.

    That is far more often a column with seconds beside milliseconds than a log of 50 years.
    """
    unit, (first, last) = log.metadata["time"]["unit"], log.time[[0, -1]] if len(log) else (0.0, 0.0)
    if unit == "iso" or last < A_DATE or not MIXED_FROM <= first < last / MIXED_RATIO:
        return None
    return (
        f"in {UNIT_NAMES[unit]}, the first time is {first:,.0f} s after 1970 began and the last one is "
        f"{format_timestamp(last)}; the column may have numbers in different units."
    )


def _user_features(table: Any, user_column: str, names: Sequence[str]) -> Any:
    if (table is None) != (not names):
        raise UsageError(
            "--user-table and --user-features belong together: a table, and its columns that models read."
        )
    return None if table is None else read_user_features(table, user_column, names)


def inputs(files: Any) -> Sequence[Path | FrameInput]:
    """Returns what to read: the files that paths and globs name, or a data frame."""
    if is_frame(files):
        return [FrameInput(as_arrow(files))]
    return expand_paths([files] if isinstance(files, str | os.PathLike) else files)


def checked_schema(schema: Schema, paths: Sequence[Path | FrameInput]) -> Schema:
    """Returns the schema with all feature columns named; raises UsageError for a wrong flag."""
    if schema.time_unit not in ("auto", *TIME_UNITS):
        units = ", ".join(["auto", *TIME_UNITS])
        raise UsageError(f"--time-unit {schema.time_unit!r} is not one of {units}.")
    if schema.delimiter is not None and not _is_delimiter(schema.delimiter):
        raise UsageError(
            f"--delimiter {schema.delimiter!r} should be one or two ASCII characters, without quotes and line ends."
        )
    if schema.positive is not None:
        if not schema.label:
            raise UsageError("--positive is a condition on the label: name its column with --label-col.")
        positive_rows(schema.positive, np.empty(0, np.float32))  # raises if it is no condition
    first = paths[0]
    return with_feature_columns(first, schema) if schema.rest_are_features and isinstance(first, Path) else schema


def _is_delimiter(text: str) -> bool:
    return 1 <= len(text) <= 2 and text.isascii() and not set(text) & set('"\r\n\0')


def rejects_copy_path(log: str | os.PathLike[str]) -> Path:
    """The file that lists the bad rows when there are too many of them to write a log."""
    return Path(f"{os.fspath(log).rstrip('/')}.rejects.csv")


def read_files(
    paths: Sequence[Path | FrameInput],
    rows: RowWriter,
    rejects: RejectsFile,
    max_bad: float,
    rejects_copy: Path,
    quiet: bool,
    earliest: float = -np.inf,
) -> None:
    """Reads all rows of the files; if too many are bad, raises DataError and lists them in `rejects_copy`."""
    try:
        _read_rows(paths, rows, rejects, quiet, earliest)
        _check_rejects(rows, rejects, paths, max_bad, rejects_copy)
    except DataError:
        if rejects.count:
            shutil.copyfile(rejects.path, rejects_copy)
        raise


def _read_rows(
    paths: Sequence[Path | FrameInput], rows: RowWriter, rejects: RejectsFile, quiet: bool, earliest: float
) -> None:
    with Progress("reading", sum(map(input_bytes, paths)), "rows", quiet=quiet) as progress:
        for path in paths:
            bytes_read = 0
            for block, repeated in _with_repeated_events(read_blocks(path, rows.schema), rows):
                rows.add(block, repeated, earliest)
                rejects.add(block)
                progress.advance(block.bytes_read - bytes_read, len(block))
                bytes_read = block.bytes_read
                if rows.rows_read >= GIVE_UP_ROWS and rejects.bad == rows.rows_read:
                    return


def _with_repeated_events(blocks: Iterator[Block], rows: RowWriter) -> Iterator[tuple[Block, Array | None]]:
    """Yields blocks, each with a mask of the rows whose event id is in the log that rows are added to.

    All event ids of the log are looked up in a table of the batch's: a table of the log's would be large.
    """
    known = rows.base.event_ids if rows.base else None
    if known is None:
        yield from ((block, None) for block in blocks)
        return
    number = rows.schema.columns.index(str(rows.schema.event_id))
    while batch := list(islice(blocks, BATCH_BLOCKS)):
        encoder, codes = IdEncoder(), []
        for block in batch:
            checks = RowChecks(block.checks.status.copy(), block.checks.bad_column.copy())
            block.columns[number].check_ids(checks, number, True)
            codes.append(np.full(len(block), -1, np.int32))
            block.columns[number].encode_ids(encoder, checks, codes[-1])
        in_log = np.append(encoder.are_in(known), False)  # the last is for code -1: a row without a valid event id
        yield from ((block, in_log[code]) for block, code in zip(batch, codes, strict=True))


def _check_rejects(
    rows: RowWriter, rejects: RejectsFile, paths: Sequence[Path | FrameInput], max_bad: float, rejects_copy: Path
) -> None:
    """Raises DataError if no row was read or too many are bad.

    Duplicate event ids are listed with the bad rows but do not count here: streams resend events.
    """
    name = f"{paths[0]}" if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    if not rows.rows_read:
        raise DataError(f"{name} is empty: there is no row to read.")
    if rows.left_out and not rows.rows_written and not rows.base:
        raise DataError(f"{name}: no row has a {rows.schema.label} {rows.schema.positive}; no log was written.")
    if (rows.rows_written or not rejects.bad) and rejects.bad <= max_bad * rows.rows_read:
        return
    share = f"{rejects.bad} of {rows.rows_read} rows are bad ({rejects.bad / rows.rows_read:.2%}"
    limit = f", more than --max-bad {max_bad:.4g}" if rows.rows_written else ""
    outcome = "the log is unchanged" if rows.base else "no log was written"
    if rejects.reasons[REASONS[LATE]]:
        outcome += "; --late merge inserts rows that are older than the log's end"
    raise DataError(f"{name}: {share}{limit}); first: {rejects.first}. All are listed in {rejects_copy}; {outcome}.")
