"""Verbs for logs: prepare, info, synth, datasets."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from dynedge.cli import app
from dynedge.errors import UsageError

Force = Annotated[bool, typer.Option("--force", help="Replace an existing log.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def _share(text: str) -> float:
    """0.001 and 0.1% are the same."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"--max-bad {text!r} should be a share of the rows, for example 0.001 or 0.1%.")
    return share


@app.command()
def prepare(
    files: Annotated[
        list[str], typer.Argument(help="CSV, TSV, JSON lines or Parquet, plain or gzip/zstd; or a glob.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The log folder to make.")],
    dataset: Annotated[str | None, typer.Option(help="A known public log: see `dynedge datasets`.")] = None,
    user_col: Annotated[str, typer.Option(help="The user's column.")] = "user_id",
    item_col: Annotated[str, typer.Option(help="The item's column.")] = "item_id",
    time_col: Annotated[str, typer.Option(help="The time's column.")] = "timestamp",
    label_col: Annotated[str | None, typer.Option(help="A numeric label.")] = None,
    event_id_col: Annotated[str | None, typer.Option(help="An id per event; a repeat is left out.")] = None,
    features: Annotated[str | None, typer.Option(help="Numeric columns a,b,c; or one with a list in it.")] = None,
    item_features: Annotated[str | None, typer.Option(help="Columns x,y that say what kind of item it is.")] = None,
    columns: Annotated[str | None, typer.Option(help="All columns by name, for a file without a header.")] = None,
    delimiter: Annotated[str | None, typer.Option(help="One or two characters; found out when not given.")] = None,
    time_unit: Annotated[str, typer.Option(help="s, ms, us, ns, iso; or auto, from the values.")] = "auto",
    max_bad: Annotated[str, typer.Option(help="The share of bad rows to put up with: 0.001 or 0.1%.")] = "0.1%",
    split: Annotated[str | None, typer.Option(help="train,valid,test; 0.8,0.1,0.1 unless the data set says.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Read files into a log: sorted by time, ids numbered, bad rows listed in its rejects.csv."""
    from dynedge.data import datasets
    from dynedge.data.ingest import pipeline as ingest
    from dynedge.data.ingest.readers import Schema
    from dynedge.data.splits import DEFAULT_SPLIT, Split

    share = _share(max_bad)
    known = datasets.find_dataset(dataset) if dataset else None
    if known:
        paths = [str(known.find(Path(file))) for file in files]
        schema = known.schema
    else:
        paths = files
        schema = Schema(
            user=user_col,
            item=item_col,
            time=time_col,
            label=label_col,
            event_id=event_id_col,
            features=_names(features),
            item_features=_names(item_features),
            names=_names(columns) or None,
            delimiter=delimiter.replace("\\t", "\t") if delimiter else None,
            time_unit=time_unit,
        )
    parts = Split.parse(split) if split else Split.parse(known.split) if known else DEFAULT_SPLIT
    log = ingest.prepare(
        paths,
        out,
        schema,
        max_bad=share,
        split=parts,
        source={"dataset": dataset} if dataset else {},
        force=force,
        quiet=False,
    )
    card = log.metadata
    if known and (mismatch := known.mismatch(log)):
        print(f"dynedge: warning: {mismatch}", file=sys.stderr)
    if as_json:
        print(json.dumps({key: value for key, value in card.items() if key != "columns"}))
        return
    how = "inferred; --time-unit overrides" if card["time"]["inferred"] else "as told"
    print(f"read      {card['rows_read']:,} rows, times in {ingest.UNIT_WORDS[card['time']['unit']]} ({how})")
    if card["rejected"]:
        why = ", ".join(f"{count:,} {reason}" for reason, count in card["rejected_why"].items())
        print(f"rejected  {card['rejected']:,}: {why}; listed in {out / 'rejects.csv'}")
    print(f"log       {out}: {card['events']:,} events, {card['users']:,} users, {card['items']:,} items")


@app.command()
def info(
    log: Annotated[Path, typer.Argument(help="A log folder.")],
    plot: Annotated[Path | None, typer.Option(help="Draw activity and degrees into this file.")] = None,
    verify: Annotated[bool, typer.Option(help="Read every column and check its sha256.")] = False,
    as_json: Json = False,
) -> None:
    """Print a log's card: counts, span, activity, repeats, equal times."""
    from dynedge.data.log import read_log
    from dynedge.data.statistics import describe

    if plot:
        from dynedge.report.log import draw_log
        from dynedge.report.style import check_target

        check_target(plot)
    opened = read_log(log)
    if verify:
        opened.verify()
    card = describe(opened)
    print(json.dumps(card) if as_json else _card_text(log, card))
    if plot:
        draw_log(opened, plot)
        print(f"drew {plot}", file=sys.stderr)


def _card_text(log: Path, card: dict[str, Any]) -> str:
    def counts(of: dict[str, float]) -> str:
        return (
            f"median {of['0.5']:,}, mean {of['mean']:,.1f}, 90 % have at most {of['0.9']:,}, "
            f"99 % at most {of['0.99']:,}, the most active {of['1']:,}"
        )

    every = card["repeat_share_from_one_user_in"]
    sample = f" (from one user in {every})" if every > 1 else ""
    lines = {
        "log": log,
        "events": f"{card['events']:,}, {card['rejected']:,} rows rejected",
        "users": f"{card['users']:,}: {counts(card['events_per_user'])}",
        "items": f"{card['items']:,}: {counts(card['events_per_item'])}",
        "time": _span(card["first_time"], card["last_time"]),
        "repeats": f"{card['repeat_share']:.1%} of events are with an item the user had before{sample}, "
        f"{card['same_as_last_share']:.1%} with the user's last item",
        "equal times": f"{card['equal_time_share']:.1%} of events share the time of the one before, "
        f"{card['equal_time_same_user_share']:.1%} that of the user's own last: there, order is the file's",
        "their order": _order(card["order_signal"]),
        "columns": f"{card['features']} features, {len(card['item_features'])} item features, "
        f"{'a label' if card['label'] else 'no label'}",
        "split": card["split"],
    }
    return "\n".join(f"{name:12}{value}" for name, value in lines.items() if value != "")


def _order(signal: dict[str, Any] | None) -> str:
    """What the order at equal times is worth; nothing where no times are equal."""
    if signal is None:
        return ""
    return (
        f"a plain rule (what followed the user's last item) has MRR {signal['mrr']:.3f} as stored, and "
        f"{signal['mrr_shuffled']:.3f} with equal times shuffled ({signal['scored']:,} of the last "
        f"{signal['events']:,} events)"
    )


def _span(first: float, last: float) -> str:
    span = last - first
    for size, word in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if span >= 2 * size:
            length = f"{span / size:,.1f} {word}"
            break
    else:
        length = f"{span:,.3g} seconds"
    if first < 86400 * 365:  # a clock that does not start at 1970: seconds since the log's own beginning
        return f"{first:,.3f} to {last:,.3f} s, {length}"
    start, end = (datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S") for t in (first, last))
    return f"{start} to {end} UTC, {length}"


@app.command()
def synth(
    recipe: Annotated[str, typer.Argument(help="demo, ml-25m-like, taobao-like, lastfm-like, reddit-like, billion.")],
    out: Annotated[Path, typer.Option("--out", help="The log folder to make.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same log.")] = 0,
    events: Annotated[int | None, typer.Option(help="A smaller or larger log of the same shape.")] = None,
    force: Force = False,
) -> None:
    """Make a synthetic log that is shaped like a real one."""
    from dynedge.data.synthetic import synthesize

    log = synthesize(recipe, out, seed=seed, events=events, force=force, quiet=False)
    print(f"log       {out}: {len(log):,} events, {log.num_users:,} users, {log.num_items:,} items")


@app.command()
def datasets(as_json: Json = False) -> None:
    """List the known public logs and where to get them."""
    from dynedge.data.datasets import DATASETS

    rows = [
        {
            "name": name,
            "title": known.title,
            "file": known.file,
            "where": known.where,
            "users": known.counts[0].users,
            "items": known.counts[0].items,
            "events": known.counts[0].events,
            "split": known.split,
        }
        for name, known in DATASETS.items()
    ]
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        size = f"{row['events']:>11,} events  {row['users']:>7,} users  {row['items']:>9,} items"
        print(f"{row['name']:10} {size}  {row['file']:16} {row['where']}")
    print("Then: dynedge prepare --dataset NAME PATH --out LOG")
