"""Commands for logs: info, datasets, synth."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from dynedge.cli import app
from dynedge.cli.options import Force, Json, LogFolder, NewLogFolder
from dynedge.cli.prepare import log_line
from dynedge.cli.tables import duration


@app.command()
def info(
    log: LogFolder,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for a plot of activity over time and degrees.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check every column against its SHA-256.")] = False,
    as_json: Json = False,
) -> None:
    """Print statistics of a log.

    Counts, time span, activity of users and items, repeated items, equal timestamps.
    """
    from dynedge.data.log import read_log
    from dynedge.data.statistics import describe

    if plot:
        from dynedge.report.log_figure import draw_log
        from dynedge.report.style import check_plot_path

        check_plot_path(plot)
    opened = read_log(log)
    if verify:
        opened.verify()
    statistics = describe(opened)
    print(json.dumps(statistics) if as_json else _statistics_text(log, statistics))
    if plot:
        draw_log(opened, plot)
        print(f"wrote {plot}", file=sys.stderr)


@app.command()
def datasets(as_json: Json = False) -> None:
    """List the public data sets that `prepare` reads, with sources."""
    from dynedge.data.public_datasets import DATASETS

    rows = [
        {
            "name": name,
            "title": dataset.title,
            "file": dataset.file,
            "where": dataset.where,
            "users": dataset.counts[0].users,
            "items": dataset.counts[0].items,
            "nodes": dataset.counts[0].nodes,
            "events": dataset.counts[0].events,
            "split": dataset.split,
        }
        for name, dataset in DATASETS.items()
    ]
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        kinds = f"{row['nodes']:,} nodes" if row["nodes"] else f"{row['users']:,} users  {row['items']:>9,} items"
        print(f"{row['name']:19} {row['events']:>11,} events  {kinds:>33}  {row['file']:27} {row['where']}")
    print("Once downloaded: dynedge prepare --dataset NAME PATH --out LOG")


@app.command()
def synth(
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="demo, ml-25m-like, taobao-like, lastfm-like, reddit-like, billion."),
    ],
    out: NewLogFolder,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed.")] = 0,
    events: Annotated[
        int | None, typer.Option(metavar="N", help="Number of events, for a smaller or larger log of the same shape.")
    ] = None,
    force: Force = False,
) -> None:
    """Generate a synthetic log with the shape of a real one."""
    from dynedge.data.synthetic import synthesize

    log = synthesize(recipe, out, seed=seed, events=events, force=force, quiet=False)
    print(log_line(out, len(log), log.num_users, log.num_items))


def _statistics_text(log: Path, statistics: dict[str, Any]) -> str:
    def counts(of: dict[str, float]) -> str:
        return (
            f"median {of['0.5']:,} events, mean {of['mean']:,.1f}, 90th percentile {of['0.9']:,}, "
            f"99th percentile {of['0.99']:,}, maximum {of['1']:,}"
        )

    every = statistics["repeat_share_from_one_user_in"]
    sample = f" (estimated from one user in {every})" if every > 1 else ""
    lines = {
        "log": log,
        "events": f"{statistics['events']:,}, {statistics['rejected']:,} rows rejected",
        "users": f"{statistics['users']:,}: {counts(statistics['events_per_user'])}",
        "items": f"{statistics['items']:,}: {counts(statistics['events_per_item'])}",
        "entities": "one population: users and items are the same" if statistics["one_population"] else "",
        "time": _span(statistics["first_time"], statistics["last_time"]),
        "repeats": f"{statistics['repeat_share']:.1%} of events repeat an earlier item of the user{sample}, "
        f"{statistics['same_as_last_share']:.1%} the user's previous item",
        "equal times": f"{statistics['equal_time_share']:.1%} of events have the timestamp of the previous event, "
        f"{statistics['equal_time_same_user_share']:.1%} that of the same user's previous event; "
        "these keep the order of the file",
        "tie order": _tie_order(statistics["order_signal"]),
        "columns": f"{statistics['features']} features, {len(statistics['item_features'])} item features, "
        f"{len(statistics['user_features'])} user features, {_label(statistics)}",
        "not used": ", ".join(statistics["unused_columns"]),
        "split": statistics["split"],
    }
    return "\n".join(f"{name:12}{value}" for name, value in lines.items() if value != "")


def _label(statistics: dict[str, Any]) -> str:
    if statistics["positive"]:
        return f"a label; {statistics['left_out']:,} rows without a label {statistics['positive']} were left out"
    if statistics["label_is_feature"]:
        return "a label, which is the last feature"
    return "a label, which models do not use" if statistics["label"] else "no label"


def _tie_order(signal: dict[str, Any] | None) -> str:
    """Describes how much the order of events with equal timestamps predicts; empty where there are none."""
    if signal is None:
        return ""
    return (
        f"MRR of a simple rule (what followed the user's last item) {signal['mrr']:.3f} as stored, "
        f"{signal['mrr_shuffled']:.3f} with ties shuffled ({signal['scored']:,} of the last "
        f"{signal['events']:,} events)"
    )


def _span(first: float, last: float) -> str:
    length = duration(last - first)
    if first < 86400 * 365:  # times that do not count from 1970 are relative to the start of the log
        return f"{first:,.3f} to {last:,.3f} s, {length}"
    start, end = (datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S") for t in (first, last))
    return f"{start} to {end} UTC, {length}"
