"""The verb `embed`: the vectors of users and items at a moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dynedge.cli import app
from dynedge.cli.data import Json
from dynedge.cli.recommend import Log, open_live
from dynedge.errors import UsageError


@app.command()
def embed(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The .parquet file to write.")],
    at: Annotated[
        str | None, typer.Option(metavar="T", help="When: a number in the log's unit or ISO 8601; needs --log.")
    ] = None,
    log: Log = None,
    as_json: Json = False,
) -> None:
    """Write a row for each user and each item: `user` or `item`, its own id, and `vector`.

    A vector is the entity's state, as the newest event that the run knows left it; an item's is followed by its id's
    learned vector where the model scores by that too. With --log the states first walk on through that log's later
    events, with --at up to that time and no further; back from what the run knows, too, from the log's beginning.
    """
    if at is not None and log is None:
        raise UsageError("--at needs --log LOG: states change with events, and the run folder holds none.")
    from dynedge.data.timestamps import format_timestamp
    from dynedge.inference.export import check_target, write_vectors

    check_target(out)
    live, _ = open_live(run, log, at, "--at")
    widths = write_vectors(live, out)
    users, items = live.ids.num_users, live.ids.num_items
    told = {"out": str(out), "time": live.coverage.last_time, "users": users, "items": items, "widths": widths}
    sentence = f"{out}: {users:,} users' vectors of {widths[0]} numbers and {items:,} items' of {widths[1]}"
    print(json.dumps(told) if as_json else f"{sentence}, at {format_timestamp(live.coverage.last_time)}")
