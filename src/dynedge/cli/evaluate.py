"""The verb `evaluate`: how well a run ranks what comes next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dynedge.cli import app
from dynedge.cli.data import Json

Protocol = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="full: ranked among all items; sampled-499, sampled-9999: among so many others."
    ),
]


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    log: Annotated[Path | None, typer.Argument(metavar="LOG", help="Its log, if it has moved.")] = None,
    protocol: Protocol = "full",
    as_json: Json = False,
) -> None:
    """Walk through the validation and test events: rank each event's item, then take the event in.

    The ranks are kept in RUN/ranks. docs/evaluation.md says how the numbers are made.
    """
    from dynedge.runs.evaluate_run import PARTS, evaluate_run

    ranked = evaluate_run(run, log, protocol=protocol)
    summary = {
        "run": str(run),
        "model": ranked.config.name,
        "log": str(ranked.log.path),
        "protocol": protocol,
        "items": ranked.log.num_items,
        **{part: ranked.summary(part) for part in reversed(PARTS)},
    }
    print(json.dumps(summary) if as_json else _text(summary))


def among(protocol: str, items: int) -> str:
    """What an item was ranked among, in words."""
    from dynedge.evaluation.summary import describe_candidates

    return describe_candidates(protocol, items)


def cell(name: str, told: dict[str, Any], *, signed: bool = False) -> str:
    """A metric and its interval: 0.8123 [0.8021, 0.8224]."""
    if told[name] is None:
        return "-"
    low, high = told["intervals"][name]
    form = ("+" if signed else "") + (",.1f" if name == "mean_rank" else ".4f")
    return f"{told[name]:{form}} [{low:{form}}, {high:{form}}]"


def table(rows: list[list[str]]) -> str:
    """Columns under their headings, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            text.rjust(width) if at else text.ljust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _text(summary: dict[str, Any]) -> str:
    from dynedge.evaluation.metrics import METRICS, title
    from dynedge.evaluation.summary import BREAKDOWN_METRICS

    parts = [summary["valid"], summary["test"]]
    means = [["", "valid, 95 % interval", "test, 95 % interval"]]
    means += [["events", *(f"{part['events']:,}" for part in parts)]]
    means += [["users", *(f"{part['users']:,}" for part in parts)]]
    means += [[title(name), *(cell(name, part) for part in parts)] for name in METRICS]
    groups = [["test events", "number", *map(title, BREAKDOWN_METRICS)]]
    for name, told in summary["test"]["breakdown"].items():
        groups.append([name, f"{told['events']:,}", *(cell(metric, told) for metric in BREAKDOWN_METRICS)])
    ranked = f"each event's item ranked among {among(summary['protocol'], summary['items'])}"
    return f"{summary['run']}: {summary['model']} on {summary['log']}, {ranked}\n\n{table(means)}\n\n{table(groups)}"
