"""Commands that read event files: prepare, append."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynedge.cli import app
from dynedge.cli.options import Force, Json, LogFolder, NewLogFolder
from dynedge.errors import UsageError

if TYPE_CHECKING:
    from dynedge.data.ingest.schema import Schema
    from dynedge.data.log import EventLog

_FILES = typer.Argument(
    metavar="FILES",
    help="CSV, TSV, JSON lines or Parquet files, plain or compressed (gzip, zstd); a glob; - for stdin.",
)
UserColumn = Annotated[str, typer.Option(metavar="COLUMN", help="Column of the user ids.")]
ItemColumn = Annotated[str, typer.Option(metavar="COLUMN", help="Column of the item ids.")]
TimeColumn = Annotated[str, typer.Option(metavar="COLUMN", help="Column of the timestamps.")]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of a numeric label; used only by --positive and --label-feature.",
    ),
]
EventIdColumn = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Column of unique event ids; rows with a repeated id are dropped."),
]
FeatureColumns = Annotated[
    str | None,
    typer.Option(metavar="A,B,…", help="Numeric columns with event features; or one column of lists."),
]
ItemFeatureColumns = Annotated[
    str | None,
    typer.Option(metavar="A,B,…", help="Categorical columns that describe the item, of FILES or --item-table."),
]
ItemTable = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Table that describes items (CSV, JSON lines, Parquet), with the same column of item ids: answers show "
        "its columns, rules of `recommend` can use them, and models read those named in --item-features.",
    ),
]
UserTable = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Table that describes users (CSV, JSON lines, Parquet), with the same column of user ids, for "
        "--user-features.",
    ),
]
UserFeatureColumns = Annotated[
    str | None,
    typer.Option(metavar="A,B,…", help="Categorical columns of --user-table that models read."),
]
ColumnNames = Annotated[
    str | None, typer.Option(metavar="A,B,…", help="Names of all columns, for a file without a header.")
]
Delimiter = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Delimiter, one or two characters; default: detected.")
]
TimeUnit = Annotated[
    str, typer.Option(metavar="UNIT", help="Unit of the timestamps: s, ms, us, ns, iso; or auto (inferred).")
]
MaxBad = Annotated[
    str, typer.Option(metavar="SHARE", help="Largest share of invalid rows that is accepted: 0.001 or 0.1%.")
]
LateRule = Annotated[
    str,
    typer.Option(
        metavar="RULE",
        help="Rows older than the log's last event: reject (listed in rejects.csv), or merge (in time order, "
        "which rewrites the log).",
    ),
]


@app.command()
def prepare(
    out: NewLogFolder,
    files: Annotated[list[str] | None, _FILES] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Public data set in FILES; see `dynedge datasets`.")
    ] = None,
    user_col: UserColumn = "user_id",
    item_col: ItemColumn = "item_id",
    time_col: TimeColumn = "timestamp",
    label_col: LabelColumn = None,
    event_id_col: EventIdColumn = None,
    features: FeatureColumns = None,
    item_features: ItemFeatureColumns = None,
    item_table: ItemTable = None,
    user_features: UserFeatureColumns = None,
    user_table: UserTable = None,
    label_feature: Annotated[
        bool, typer.Option("--label-feature", help="Use the label as an event feature too, the last one.")
    ] = False,
    one_population: Annotated[
        bool,
        typer.Option(
            "--one-population",
            help="Users and items are the same entities, as in messages between people: one set of ids.",
        ),
    ] = False,
    positive: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION", help="Condition on the label of the rows to keep, such as '>=4'; needs --label-col."
        ),
    ] = None,
    columns: ColumnNames = None,
    delimiter: Delimiter = None,
    time_unit: TimeUnit = "auto",
    max_bad: MaxBad = "0.1%",
    split: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="Shares of training, validation and test events; default: 0.8,0.1,0.1 or the data set's.",
        ),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Convert event files (CSV, JSON lines, Parquet) to a log.

    The log is sorted by time, with users and items numbered. Invalid rows are listed in LOG/rejects.csv.
    """
    from dynedge.data import public_datasets
    from dynedge.data.ingest import pipeline as ingest
    from dynedge.data.splits import DEFAULT_SPLIT, Split

    max_bad_share = _parse_share(max_bad)
    public = public_datasets.find_dataset(dataset) if dataset else None
    inputs: Any = files or []
    named = _named_columns(user_col, item_col, time_col, label_col, event_id_col, features, columns, delimiter)
    if public and named:
        raise UsageError(f"--dataset {dataset} has columns of its own: leave out {named}.")
    if public and public.packaged:
        if files:
            raise UsageError(f"--dataset {dataset} is read from an installed package: leave out {files[0]}.")
        inputs = public.packaged()
    elif not files:
        raise UsageError("FILES are missing: dynedge prepare FILE… --out LOG")
    elif public:
        inputs = [str(public.find(Path(file))) for file in files]
    schema = (
        public.schema
        if public
        else _schema(
            user_col,
            item_col,
            time_col,
            label_col,
            event_id_col,
            features,
            item_features,
            columns,
            delimiter,
            time_unit,
        )
    )
    schema = replace(schema, one_population=one_population, positive=positive)
    if label_feature:
        if not schema.label:
            raise UsageError("--label-feature needs a label: name its column with --label-col.")
        schema = replace(schema, label_is_feature=True)
    if public and item_table is None and (item_table := public.item_table(inputs[0])):
        schema = replace(schema, item_features=(*schema.item_features, *public.item_table_features))
    published_split = public.split_of(inputs[0]) if public else DEFAULT_SPLIT
    with _stdin_as_file(inputs) as sources:
        log = ingest.prepare(
            sources,
            out,
            schema,
            item_table=item_table,
            user_table=user_table,
            user_features=_parse_names(user_features),
            max_bad=max_bad_share,
            split=Split.parse(split) if split else published_split,
            source={"dataset": dataset} if dataset else {},
            force=force,
            quiet=False,
        )
    if public and public.add_negatives:
        print(f"negatives {public.add_negatives(log, Path(inputs[0]))}", file=sys.stderr)
    metadata = log.metadata
    if public and (mismatch := public.mismatch(log)):
        print(f"dynedge: warning: {mismatch}", file=sys.stderr)
    _warn_of_mixed_units(log)
    if as_json:
        print(json.dumps({key: value for key, value in metadata.items() if key != "columns"}))
        return
    how = "inferred; --time-unit overrides" if metadata["time"]["inferred"] else "as given"
    print(f"read      {metadata['rows_read']:,} rows, times in {ingest.UNIT_NAMES[metadata['time']['unit']]} ({how})")
    if metadata["rejected"]:
        print(_rejected_line(out, metadata["rejected"], metadata["rejected_why"]))
    if schema.positive:
        print(f"left out  {metadata['left_out']:,} rows: {schema.label} is not {schema.positive}")
    if metadata["unused_columns"]:
        print(f"not used  columns {', '.join(metadata['unused_columns'])}")
    print(log_line(out, metadata["events"], metadata["users"], metadata["items"]))


@app.command()
def append(
    log: LogFolder,
    files: Annotated[list[str], _FILES],
    user_col: UserColumn = "user_id",
    item_col: ItemColumn = "item_id",
    time_col: TimeColumn = "timestamp",
    label_col: LabelColumn = None,
    event_id_col: EventIdColumn = None,
    features: FeatureColumns = None,
    item_features: ItemFeatureColumns = None,
    columns: ColumnNames = None,
    delimiter: Delimiter = None,
    time_unit: TimeUnit = "auto",
    max_bad: MaxBad = "0.1%",
    late: LateRule = "reject",
    as_json: Json = False,
) -> None:
    """Add the rows of event files to a log.

    Users, items and events keep their numbers. Invalid rows are added to LOG/rejects.csv. The log changes completely
    or not at all, and commands that are reading it are not disturbed.
    """
    from dynedge.data.ingest import append as ingest
    from dynedge.data.ingest.pipeline import UNIT_NAMES

    schema = _schema(
        user_col, item_col, time_col, label_col, event_id_col, features, item_features, columns, delimiter, time_unit
    )
    with _stdin_as_file(files) as sources:
        added = ingest.append(log, sources, schema, late=late, max_bad=_parse_share(max_bad), quiet=False)
    metadata = added.log.metadata
    _warn_of_mixed_units(added.log)
    if as_json:
        counts = {key: value for key, value in vars(added).items() if key != "log"}
        print(json.dumps({key: value for key, value in metadata.items() if key != "columns"} | {"added": counts}))
        return
    print(f"read      {added.rows_read:,} rows, times in {UNIT_NAMES[added.time_unit]}")
    if added.rejected:
        print(_rejected_line(log, added.rejected, added.rejected_why))
    if added.left_out:
        print(f"left out  {added.left_out:,} rows: {schema.label} is not {metadata['positive']}")
    late_rows = f", {added.late:,} of them older than the log's end" if added.late else ""
    print(f"added     {added.events:,} events{late_rows}, {added.users:,} users, {added.items:,} items")
    print(log_line(log, metadata["events"], metadata["users"], metadata["items"]))


def _warn_of_mixed_units(log: EventLog) -> None:
    from dynedge.data.ingest.pipeline import mixed_time_units

    if mixed := mixed_time_units(log):
        print(f"dynedge: warning: {mixed}", file=sys.stderr)


@contextmanager
def _stdin_as_file(files: Any) -> Iterator[Any]:
    """Yields the files, with "-" replaced by a temporary file that holds stdin: its content tells its format."""
    if not isinstance(files, list) or "-" not in files:
        yield files
        return
    if sys.stdin.isatty() or files.count("-") > 1:
        raise UsageError(
            "- reads stdin, once: pipe a file into the command, as in: zcat events.gz | dynedge prepare -"
        )
    with tempfile.TemporaryDirectory(prefix="dynedge-") as folder:
        path = Path(folder) / "stdin"
        with open(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield [str(path) if name == "-" else name for name in files]


def _schema(
    user: str,
    item: str,
    time: str,
    label: str | None,
    event_id: str | None,
    features: str | None,
    item_features: str | None,
    columns: str | None,
    delimiter: str | None,
    time_unit: str,
) -> Schema:
    from dynedge.data.ingest.schema import Schema

    return Schema(
        user=user,
        item=item,
        time=time,
        label=label,
        event_id=event_id,
        features=_parse_names(features),
        item_features=_parse_names(item_features),
        names=_parse_names(columns) or None,
        delimiter=delimiter.replace("\\t", "\t") if delimiter else None,
        time_unit=time_unit,
    )


def _named_columns(user: str, item: str, time: str, *others: str | None) -> str:
    """The first flag that describes the columns of FILES and was given; empty if none was."""
    defaults = {"--user-col": (user, "user_id"), "--item-col": (item, "item_id"), "--time-col": (time, "timestamp")}
    flags = "--label-col", "--event-id-col", "--features", "--columns", "--delimiter"
    given = defaults | {flag: (value, None) for flag, value in zip(flags, others, strict=True)}
    return next((flag for flag, (value, default) in given.items() if value != default), "")


def _rejected_line(log: Path, count: int, why: dict[str, int]) -> str:
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in why.items())
    return f"rejected  {count:,}: {reasons}; listed in {log / 'rejects.csv'}"


def _parse_names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def _parse_share(text: str) -> float:
    """Returns a share given as a number or in percent: 0.001 and 0.1% are the same."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"--max-bad {text!r} should be a share of the rows, for example 0.001 or 0.1%.")
    return share


def log_line(folder: Path, events: int, users: int, items: int) -> str:
    """Returns the last line of a command that writes a log."""
    return f"log       {folder}: {events:,} events, {users:,} users, {items:,} items"
