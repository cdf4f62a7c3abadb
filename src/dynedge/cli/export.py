"""The command `export`: exports the events that a service received."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dynedge.cli import app
from dynedge.cli.options import Json
from dynedge.cli.serve import ServiceFolder, service_folder
from dynedge.errors import DataError


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder that is or was served.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Parquet file to write.")],
    data: ServiceFolder = None,
    user_col: Annotated[str, typer.Option(metavar="COLUMN", help="Name of the user column.")] = "user_id",
    item_col: Annotated[str, typer.Option(metavar="COLUMN", help="Name of the item column.")] = "item_id",
    time_col: Annotated[str, typer.Option(metavar="COLUMN", help="Name of the timestamp column.")] = "timestamp",
    event_id_col: Annotated[str, typer.Option(metavar="COLUMN", help="Name of the event id column.")] = "event_id",
    as_json: Json = False,
) -> None:
    """Export the events that a service received to a Parquet file.

    The order is that of arrival. To retrain on them, `dynedge prepare OLD.csv FILE.parquet --out LOG` makes a log of
    the original file and the new events. FILE has a column for each event feature of the run, and an empty one for
    each item feature: item features come from the original file. The service may keep running.
    """
    from dynedge.data.log import read_log
    from dynedge.inference.parquet_export import check_target
    from dynedge.runs.folder import IDS, check_finished
    from dynedge.serving.journal_export import write_events
    from dynedge.serving.sqlite_journal import JOURNAL, SqliteJournal

    check_target(out)
    check_finished(run)
    path = service_folder(run, data) / JOURNAL
    if not path.is_file():
        raise DataError(f"{path} does not exist: no service has run there; pass its folder with --data DIR.")
    journal = SqliteJournal(path)
    try:
        names = user_col, item_col, time_col, event_id_col
        count = write_events(journal, out, names, read_log(run / IDS).metadata, quiet=False)
    finally:
        journal.close()
    summary = {"out": str(out), "events": count}
    print(json.dumps(summary) if as_json else f"{out}: {count:,} events received by {run}")
