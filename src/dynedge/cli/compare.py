"""The verb `compare`: runs on the same log beside each other."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dynedge.cli import app
from dynedge.cli.data import Json
from dynedge.cli.evaluate import Protocol, among, cell, table

MARKS = {0: "*", 1: "°"}  # best, second best


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN…", help="Run folders, trained on the same log.")],
    protocol: Protocol = "full",
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the comparison into this file.")] = None,
    as_json: Json = False,
) -> None:
    """Print the runs' metrics on the test events, and their paired differences to the best run by MRR.

    A run that was not evaluated yet is, first.
    """
    if plot:
        from dynedge.report.compare import draw_comparison
        from dynedge.report.style import check_target

        check_target(plot)
    from dynedge.models.registry import MODELS
    from dynedge.training.comparison import compare_runs

    found = compare_runs(runs, MODELS, protocol=protocol)
    print(json.dumps(found) if as_json else _text(found))
    if plot:
        draw_comparison(found, plot)
        print(f"drew {plot}", file=sys.stderr)


def _text(found: dict[str, Any]) -> str:
    from dynedge.ranking.metrics import METRICS, title

    runs = found["runs"]
    columns = [_marked(name, [run["test"][name] for run in runs]) for name in METRICS]
    names = [[run["run"], run["model"]] for run in runs]
    means = [["run", "model", *map(title, METRICS)]]
    means += [[*name, *values] for name, *values in zip(names, *columns, strict=True)]
    told = ["mrr", "recall@10"]
    bounds = [["95 % intervals", "MRR", "less the best", "Recall@10", "less the best"]]
    for run in runs:
        less = run.get("less_best")
        pairs = [(cell(name, run["test"]), cell(name, less, signed=True) if less else "") for name in told]
        bounds.append([run["run"], *(text for pair in pairs for text in pair)])
    test = runs[0]["test"]
    return (
        f"{found['log']}, {test['events']:,} test events of {test['users']:,} users, "
        f"each item ranked among {among(found['protocol'], found['items'])}\n\n"
        f"{table(means)}\n\n{table(bounds)}\n\n* best, ° second best; "
        f"less the best: than {found['best']}, the best by MRR, event by event; intervals are of resampled users"
    )


def _marked(name: str, values: list[float | None]) -> list[str]:
    """A column of a metric: the best and the second best value marked; ties share their mark."""
    form = ",.1f" if name == "mean_rank" else ".4f"
    texts = ["-" if value is None else f"{value:{form}}" for value in values]
    there = {(value, text) for value, text in zip(values, texts, strict=True) if value is not None}
    ordered = list(dict.fromkeys(text for _, text in sorted(there, reverse=name != "mean_rank")))
    return [text + MARKS.get(ordered.index(text) if text in ordered else 2, " ") for text in texts]
