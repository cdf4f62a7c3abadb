"""The command `compare`: finished runs on one log, or models that are first trained on it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dynedge.cli import app
from dynedge.cli.config_flags import config_flag
from dynedge.cli.help_format import SectionedCommand
from dynedge.cli.options import Json, Lists, Protocol
from dynedge.cli.tables import LEGEND, list_table, mark_best, metric_cell, table
from dynedge.errors import UsageError

FOR_A_LOG, FOR_RUNS = "Options of compare LOG", "Options of compare RUN RUN…"


@app.command(cls=SectionedCommand)
def compare(
    paths: Annotated[
        list[Path], typer.Argument(metavar="LOG | RUN RUN…", help="A log, or run folders of the same log.")
    ],
    models: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="Models, recipes or config.toml files to train. [default: all models]",
            rich_help_panel=FOR_A_LOG,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of seeds per model. [default: 3]", min=1, rich_help_panel=FOR_A_LOG),
    ] = None,
    epochs: Annotated[int | None, config_flag("epochs", default=False, min=0, rich_help_panel=FOR_A_LOG)] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder for the run folders. [default: LOG-runs]", rich_help_panel=FOR_A_LOG
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for an HTML report with plots.", rich_help_panel=FOR_A_LOG),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for a plot of the comparison.", rich_help_panel=FOR_RUNS),
    ] = None,
    protocol: Protocol = "full",
    lists: Lists = None,
    as_json: Json = False,
) -> None:
    """Compare runs, or models trained on a log, by test metrics.

    Prints MRR and Recall@10 with confidence intervals and paired differences to the best model, and metrics of
    recommended lists: coverage, diversity and others. Given a log, every
    model is first trained and evaluated in a process of its own; time per epoch, peak memory and number of parameters
    are printed too, and a model that fails is listed with the reason. An interrupted comparison continues when the
    same command is run again.
    """
    from dynedge.data.log import METADATA

    log_flags = {"--models": models, "--seeds": seeds, "--epochs": epochs, "--runs": runs, "--report": report}
    given = [flag for flag, value in log_flags.items() if value is not None]
    if len(paths) == 1 and (paths[0] / METADATA).is_file():
        if plot:
            raise UsageError("--plot is for runs; for a log, --report DIR writes a page with plots.")
        from dynedge.cli.compare_models import compare_log

        compare_log(paths[0], models or "all", seeds or 3, epochs, runs, report, protocol, lists, as_json)
    elif given:
        raise UsageError(
            f"{given[0]} is for a log, as in dynedge compare LOG {given[0]} …; runs are trained already."
        )
    else:
        _compare_runs(paths, protocol, lists, plot, as_json)


def _compare_runs(runs: list[Path], protocol: str, lists: bool | None, plot: Path | None, as_json: bool) -> None:
    if plot:
        from dynedge.report.compare_figure import draw_comparison
        from dynedge.report.style import check_plot_path

        check_plot_path(plot)
    from dynedge.experiments.compare_runs import compare_runs

    comparison = compare_runs(runs, protocol=protocol, lists=lists)
    print(json.dumps(comparison) if as_json else _text(comparison))
    if plot:
        draw_comparison(comparison, plot)
        print(f"wrote {plot}", file=sys.stderr)


def _text(comparison: dict[str, Any]) -> str:
    from dynedge.evaluation.metrics import METRICS, title
    from dynedge.evaluation.summary import describe_candidates

    runs = comparison["runs"]
    columns = [mark_best(name, [run["test"][name] for run in runs]) for name in METRICS]
    means = [["run", "model", *map(title, METRICS)]]
    means += [[run["run"], run["model"], *values] for run, *values in zip(runs, *columns, strict=True)]
    intervals = [["run, 95 % intervals", "MRR", "difference to best", "Recall@10", "difference to best"]]
    for run in runs:
        difference = run.get("difference_to_best")
        cells = []
        for name in ("mrr", "recall@10"):
            cells += [metric_cell(name, run["test"])]
            cells += [metric_cell(name, difference, signed=True) if difference else ""]
        intervals.append([run["run"], *cells])
    test = runs[0]["test"]
    lists = list_table([(run["run"], run["test"]) for run in runs])
    return (
        f"{comparison['log']}, {test['events']:,} test events of {test['users']:,} users, "
        f"items ranked among {describe_candidates(comparison['protocol'], comparison['items'])}\n\n"
        f"{table(means, text_columns=(0, 1))}\n\n{table(intervals)}\n\n{lists}{LEGEND}; "
        f"difference to best: mean difference per event to {comparison['best']}, the best by MRR; "
        "intervals: bootstrap over users"
    )
