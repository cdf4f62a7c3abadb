"""The verb `compare`: runs on the same log beside each other, or models trained on a log for that."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dynedge.cli import app
from dynedge.cli.data import Json
from dynedge.cli.evaluate import Protocol, among, cell, table
from dynedge.errors import UsageError

MARKS = {0: "*", 1: "°"}  # best, second best
LEGEND = "* best, ° second best"


@app.command()
def compare(
    paths: Annotated[list[Path], typer.Argument(metavar="LOG | RUN RUN…", help="A log, or runs on the same log.")],
    models: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="On LOG: models, recipes or config.toml files. Default: all.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="On LOG: train each so many times. Default: 3.", min=1)] = None,
    epochs: Annotated[int | None, typer.Option(help="On LOG: no more than so many epochs each.", min=0)] = None,
    runs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="On LOG: keep the run folders here. Default: LOG-runs.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="On LOG: write a page with table and pictures here.")
    ] = None,
    protocol: Protocol = "full",
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Of RUNs: draw the comparison here.")] = None,
    as_json: Json = False,
) -> None:
    """Compare models on the test events: MRR and Recall@10 with intervals, and paired differences to the best.

    Given runs, it sets them beside each other. Given a log, it first trains and ranks every model, each in a process
    of its own, and also tells time per epoch, peak memory and parameters. A model that fails is a line that says why.
    Stopped or killed, the same command goes on where it stood.
    """
    from dynedge.data.log import METADATA

    for_log = {"--models": models, "--seeds": seeds, "--epochs": epochs, "--runs": runs, "--report": report}
    given = [flag for flag, value in for_log.items() if value is not None]
    if len(paths) == 1 and (paths[0] / METADATA).is_file():
        if plot:
            raise UsageError("--plot draws runs; of a log, --report DIR writes a page with pictures.")
        from dynedge.cli.compare_log import compare_log

        compare_log(paths[0], models or "all", seeds or 3, epochs, runs, report, protocol, as_json)
    elif given:
        raise UsageError(f"{given[0]} is for one log: dynedge compare LOG {given[0]} …; of runs, all is settled.")
    else:
        _compare_runs(paths, protocol, plot, as_json)


def _compare_runs(runs: list[Path], protocol: str, plot: Path | None, as_json: bool) -> None:
    if plot:
        from dynedge.report.compare import draw_comparison
        from dynedge.report.style import check_target

        check_target(plot)
    from dynedge.experiments.compare import compare_runs

    found = compare_runs(runs, protocol=protocol)
    print(json.dumps(found) if as_json else _text(found))
    if plot:
        draw_comparison(found, plot)
        print(f"drew {plot}", file=sys.stderr)


def _text(found: dict[str, Any]) -> str:
    from dynedge.evaluation.metrics import METRICS, title

    runs = found["runs"]
    columns = [marked(name, [run["test"][name] for run in runs]) for name in METRICS]
    names = [[run["run"], run["model"]] for run in runs]
    means = [["run", "model", *map(title, METRICS)]]
    means += [[*name, *values] for name, *values in zip(names, *columns, strict=True)]
    told = ["mrr", "recall@10"]
    bounds = [["95 % intervals", "MRR", "less the best", "Recall@10", "less the best"]]
    for run in runs:
        less = run.get("difference_to_best")
        pairs = [(cell(name, run["test"]), cell(name, less, signed=True) if less else "") for name in told]
        bounds.append([run["run"], *(text for pair in pairs for text in pair)])
    test = runs[0]["test"]
    return (
        f"{found['log']}, {test['events']:,} test events of {test['users']:,} users, "
        f"each item ranked among {among(found['protocol'], found['items'])}\n\n"
        f"{table(means)}\n\n{table(bounds)}\n\n{LEGEND}; "
        f"less the best: than {found['best']}, the best by MRR, event by event; intervals are of resampled users"
    )


def marked(name: str, values: list[float | None]) -> list[str]:
    """A column of a metric: the best and the second best value marked; ties share their mark."""
    form = ",.1f" if name == "mean_rank" else ".4f"
    texts = ["-" if value is None else f"{value:{form}}" for value in values]
    there = {(value, text) for value, text in zip(values, texts, strict=True) if value is not None}
    ordered = list(dict.fromkeys(text for _, text in sorted(there, reverse=name != "mean_rank")))
    return [text + MARKS.get(ordered.index(text) if text in ordered else 2, " ") for text in texts]
