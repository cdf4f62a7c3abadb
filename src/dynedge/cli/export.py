"""The verb `export`: what a service has taken in, as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dynedge.cli import app
from dynedge.cli.data import Json
from dynedge.cli.serve import Data, data_of
from dynedge.errors import DataError


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that is or was served.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The .parquet file to write.")],
    data: Data = None,
    user_col: Annotated[str, typer.Option(help="What to call the user's column.")] = "user_id",
    item_col: Annotated[str, typer.Option(help="What to call the item's column.")] = "item_id",
    time_col: Annotated[str, typer.Option(help="What to call the time's column.")] = "timestamp",
    event_id_col: Annotated[str, typer.Option(help="What to call the event id's column.")] = "event_id",
    as_json: Json = False,
) -> None:
    """Write every event that a service has taken in, in the order of arrival, so that a run can be trained on them.

    `dynedge prepare OLD.csv FILE.parquet --out LOG` then makes a log of your own file and what came since. Columns
    for the run's event features and item features are there too; of an item, the latter are left to your file. The
    service may go on meanwhile.
    """
    from dynedge.data.log import read_log
    from dynedge.inference.export import check_target
    from dynedge.runs.folder import IDS, check_finished
    from dynedge.serving.journal import JOURNAL, Journal
    from dynedge.serving.journal_export import write_events

    check_target(out)
    check_finished(run)
    path = data_of(run, data) / JOURNAL
    if not path.is_file():
        raise DataError(f"there is no {path}: nothing was served from there; say where with --data DIR.")
    journal = Journal(path)
    try:
        names = user_col, item_col, time_col, event_id_col
        count = write_events(journal, out, names, read_log(run / IDS).metadata, quiet=False)
    finally:
        journal.close()
    told = {"out": str(out), "events": count}
    print(json.dumps(told) if as_json else f"{out}: {count:,} events that {run} was sent")
