"""The command `export`: exports the events that a service received, or an index of a run's items."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dynedge.cli import app
from dynedge.cli.options import Force, Json
from dynedge.cli.serve import JournalUrl, ServiceFolder, open_redis_journal, service_folder
from dynedge.errors import DataError


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder that is or was served.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Parquet file to write; with --index, a folder.")],
    index: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Export an approximate nearest-neighbour index of the items instead: faiss or hnsw (extra ann).",
        ),
    ] = None,
    k: Annotated[int, typer.Option("--k", metavar="K", help="Number of items per list for the recall.", min=1)] = 10,
    force: Force = False,
    data: ServiceFolder = None,
    journal: JournalUrl = None,
    user_col: Annotated[str, typer.Option(metavar="COLUMN", help="Name of the user column.")] = "user_id",
    item_col: Annotated[str, typer.Option(metavar="COLUMN", help="Name of the item column.")] = "item_id",
    time_col: Annotated[str, typer.Option(metavar="COLUMN", help="Name of the timestamp column.")] = "timestamp",
    event_id_col: Annotated[str, typer.Option(metavar="COLUMN", help="Name of the event id column.")] = "event_id",
    as_json: Json = False,
) -> None:
    """Export a service's events, or an index of items.

    The order is that of arrival. To retrain on them, `dynedge prepare OLD.csv FILE.parquet --out LOG` makes a log of
    the original file and the new events. FILE has a column for each event feature of the run, and an empty one for
    each item feature: item features come from the original file. The service may keep running.

    With --index, writes a folder with an index of the run's item vectors, the vectors of items and users in Parquet
    files, and prints the recall of its lists against the exact search. It is for models whose scores are inner
    products, such as edge-paper-small.
    """
    if index is not None:
        _export_index(run, index, out, k, force, as_json)
        return
    from dynedge.inference.session import Session
    from dynedge.inference.table_files import check_target
    from dynedge.runs.folder import check_finished
    from dynedge.serving.journal_export import write_events
    from dynedge.serving.sqlite_journal import JOURNAL, SqliteJournal
    from dynedge.serving.validation import applicable_events

    check_target(out)
    check_finished(run)
    path = service_folder(run, data) / JOURNAL
    if journal is None and not path.is_file():
        raise DataError(f"{path} does not exist: no service has run there; pass its folder with --data DIR.")
    opened = SqliteJournal(path) if journal is None else open_redis_journal(journal)
    try:
        names, session = (user_col, item_col, time_col, event_id_col), Session.open(run)
        events_of = partial(applicable_events, session)
        count = write_events(opened, out, names, session.run_log.metadata, events_of=events_of, quiet=False)
    finally:
        opened.close()
    summary = {"out": str(out), "events": count}
    print(json.dumps(summary) if as_json else f"{out}: {count:,} events received by {run}")


def _export_index(run: Path, kind: str, out: Path, k: int, force: bool, as_json: bool) -> None:
    from dynedge.inference.ann_index import write_index
    from dynedge.inference.session import Session

    summary = write_index(Session.open(run), kind, out, k, force=force)
    recall = next(f"{name} {value:.4f}" for name, value in summary.items() if name.startswith("recall@"))
    text = f"{out}: {kind} index of {summary['items']:,} items, {recall} of the exact search"
    print(json.dumps({"out": str(out), **summary}) if as_json else f"{text} ({summary['measured_users']:,} users)")
