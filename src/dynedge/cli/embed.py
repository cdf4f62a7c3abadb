"""The command `embed`: exports the vectors of users and items."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dynedge.cli import app
from dynedge.cli.options import Json, NewerEvents, RunFolder
from dynedge.cli.recommend import open_session
from dynedge.errors import UsageError


@app.command()
def embed(
    run: RunFolder,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Parquet file to write.")],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="T", help="Time of the vectors: a number in the unit of the log, or ISO 8601; needs --log."
        ),
    ] = None,
    log: NewerEvents = None,
    as_json: Json = False,
) -> None:
    """Export the vectors of users and items to a Parquet file.

    One row per user and per item: the original id in `user_id` or `item_id`, and `vector`, the state after the newest
    event. Item vectors end with the learned embedding of the item id, where the model has one. With --log, the log's
    newer events update the states first, up to --at; a time before the newest event replays the log from its start.
    """
    if at is not None and log is None:
        raise UsageError("--at needs --log LOG: states change with events, and a run folder holds none.")
    from dynedge.data.timestamps import format_timestamp
    from dynedge.inference.table_files import check_target, write_vectors

    check_target(out)
    session, _ = open_session(run, log, at, "--at")
    widths = write_vectors(session, out)
    users, items, time = len(session.users), len(session.items), session.coverage.last_time
    summary = {"out": str(out), "time": time, "users": users, "items": items, "widths": widths}
    text = f"{out}: {users:,} user vectors of width {widths[0]} and {items:,} item vectors of width {widths[1]}"
    print(json.dumps(summary) if as_json else f"{text}, at {format_timestamp(time)}")
