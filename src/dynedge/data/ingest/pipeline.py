"""`prepare`: reads input files into an event log, sorted by time, with dense ids; lists every rejected row."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynedge.data.ingest.readers import expand_paths, read_blocks
from dynedge.data.ingest.rejects import RejectsFile
from dynedge.data.ingest.row_checks import DUPLICATE_EVENT_ID, REASONS
from dynedge.data.ingest.row_writer import RowWriter
from dynedge.data.ingest.schema import Schema
from dynedge.data.ingest.text_reader import with_feature_columns
from dynedge.data.ingest.time_parser import TIME_UNITS
from dynedge.data.log import EventLog, read_log
from dynedge.data.log_writer import LogWriter
from dynedge.data.splits import DEFAULT_SPLIT, Split
from dynedge.errors import DataError, UsageError
from dynedge.utils.progress import Progress

UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds", "iso": "ISO 8601"}
DEFAULT_MAX_BAD = 0.001
GIVE_UP_ROWS = 1_000_000  # reading stops after this many rows if none of them is valid


def prepare(
    files: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    out: str | os.PathLike[str],
    schema: Schema | None = None,
    *,
    max_bad: float = DEFAULT_MAX_BAD,
    split: Split = DEFAULT_SPLIT,
    source: dict[str, Any] | None = None,
    force: bool = False,
    quiet: bool = True,
) -> EventLog:
    """Reads files into a log folder at `out`, which appears complete or not at all, and opens it.

    Raises DataError when a file cannot be read or more than `max_bad` of the rows are bad; the bad rows are then
    listed in OUT.rejects.csv, and no log is written.
    """
    paths = expand_paths([files] if isinstance(files, str | os.PathLike) else files)
    schema = _checked(schema or Schema())
    if schema.rest_are_features:
        schema = with_feature_columns(paths[0], schema)
    rejects_copy = Path(f"{os.fspath(out).rstrip('/')}.rejects.csv")
    with LogWriter(out, force=force) as writer:
        scratch = writer.folder / "scratch"
        scratch.mkdir()
        rows = RowWriter(writer, scratch, schema)
        with RejectsFile(writer.folder / "rejects.csv", schema) as rejects:
            try:
                _read_files(paths, rows, rejects, quiet)
                _check_rejects(rows, rejects, paths, max_bad, rejects_copy)
            except DataError:
                if rejects.count:
                    shutil.copyfile(rejects.path, rejects_copy)
                raise
        rows.sort(quiet)
        shutil.rmtree(scratch)
        counts = rows.finish()
        writer.finish(
            **counts,
            rows_read=rows.rows_read,
            rejected=rejects.count,
            rejected_why=dict(rejects.reasons.most_common()),
            features=rows.feature_names,
            item_features=list(schema.item_features),
            split=str(split),
            time={"unit": rows.unit, "inferred": schema.time_unit == "auto"},
            source={**(source or {}), "files": [path.name for path in paths]},
        )
    rejects_copy.unlink(missing_ok=True)  # from an earlier, failed attempt at this log
    return read_log(out)


def _checked(schema: Schema) -> Schema:
    if schema.time_unit not in ("auto", *TIME_UNITS):
        units = ", ".join(["auto", *TIME_UNITS])
        raise UsageError(f"--time-unit {schema.time_unit!r} is not one of {units}.")
    if schema.delimiter is not None and not 1 <= len(schema.delimiter.encode()) <= 2:
        raise UsageError(f"--delimiter {schema.delimiter!r} should be one or two characters.")
    return schema


def _read_files(paths: list[Path], rows: RowWriter, rejects: RejectsFile, quiet: bool) -> None:
    with Progress("reading", sum(path.stat().st_size for path in paths), "rows", quiet=quiet) as progress:
        for path in paths:
            bytes_read = 0
            for block in read_blocks(path, rows.schema):
                rows.add(block)
                rejects.add(block)
                progress.advance(block.bytes_read - bytes_read, len(block))
                bytes_read = block.bytes_read
                if rows.rows_read >= GIVE_UP_ROWS and not rows.rows_written:
                    return


def _check_rejects(
    rows: RowWriter, rejects: RejectsFile, paths: list[Path], max_bad: float, rejects_copy: Path
) -> None:
    """Raises DataError if no row was read or too many are bad.

    Duplicate event ids are listed with the bad rows but do not count here: streams resend events.
    """
    name = f"{paths[0]}" if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    if not rows.rows_read:
        raise DataError(f"{name} is empty: there is no row to read.")
    bad = rejects.count - rejects.reasons[REASONS[DUPLICATE_EVENT_ID]]
    if rows.rows_written and bad <= max_bad * rows.rows_read:
        return
    share = f"{rejects.count} of {rows.rows_read} rows are bad ({rejects.count / rows.rows_read:.2%}"
    limit = f", more than --max-bad {max_bad:.4g}" if rows.rows_written else ""
    raise DataError(
        f"{name}: {share}{limit}); first: {rejects.first}. All are listed in {rejects_copy}; no log was written."
    )
