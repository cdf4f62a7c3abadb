"""The command `backtest`: how often a model must be trained again, on the user's own log."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dynedge.cli import app, stopped
from dynedge.cli.config_flags import config_flag
from dynedge.cli.options import Assignments, Json, LogFolder, Protocol
from dynedge.cli.tables import LEGEND, duration, mark_best, metric_cell, table
from dynedge.errors import UsageError


@app.command()
def backtest(
    log: LogFolder,
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="Model, recipe or config.toml file.")
    ] = "edge",
    policies: Annotated[
        str,
        typer.Option(
            metavar="A,B,…",
            help="Policies: frozen (nothing changes after the first cut), state (states follow the events), "
            "online (parameters too), update (the run of the cut before goes on), "
            "retrain (trained from nothing at each cut).",
        ),
    ] = "frozen,state,update,retrain",
    cuts: Annotated[
        int | None, typer.Option(metavar="N", help="Number of cuts, at equal numbers of events. [default: 5]", min=1)
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="PERIOD", help="Cut after every PERIOD instead: 50000 events, or 6h, 1d, 1w of time."),
    ] = None,
    start: Annotated[float, typer.Option(metavar="SHARE", help="Share of the events before the first cut.")] = 0.5,
    epochs: Annotated[int | None, config_flag("epochs", default=False, min=0, rich_help_panel=None)] = None,
    assignments: Assignments = None,
    runs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for runs and ranks. [default: LOG-backtest]")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for a plot of MRR against the time since training.")
    ] = None,
    protocol: Protocol = "full",
    as_json: Json = False,
) -> None:
    """Find out how often a model must be retrained on a log.

    The log is cut at several times. At each cut the policies are judged on the events up to the next one, with models
    that have seen only earlier events. Prints MRR by policy and cut, paired differences, and the seconds spent on
    training. An interrupted backtest continues when the same command is run again.
    """
    if plot:
        from dynedge.report.backtest_figure import draw_backtest
        from dynedge.report.style import check_plot_path

        check_plot_path(plot)
    from dynedge.data.log import read_log
    from dynedge.experiments.backtest import backtest as run_backtest
    from dynedge.experiments.backtest import backtest_config
    from dynedge.utils.signals import StoppedBySignal

    if every is not None and cuts is not None:
        raise UsageError("--every and --cuts both say where to cut the log; pass one of them.")
    names = [name.strip() for name in policies.split(",") if name.strip()]
    folder = runs or log.resolve().with_name(f"{log.resolve().name}-backtest")
    try:
        config = backtest_config(model, epochs, assignments or [])
        where: dict[str, Any] = {"cuts": cuts or 5, "every": every, "start": start}
        results = run_backtest(read_log(log), config, names, folder, **where, protocol=protocol)
    except StoppedBySignal as signal:
        raise stopped(signal, signal.exit_code, "run the same command again to continue") from None
    print(json.dumps(results) if as_json else _text(results))
    if plot:
        draw_backtest(results, plot)
        print(f"wrote {plot}", file=sys.stderr)


def _text(results: dict[str, Any]) -> str:
    from dynedge.evaluation.summary import describe_candidates

    events, cuts = sum(cut["events"] for cut in results["cuts"]), len(results["cuts"])
    parts = [
        f"{results['log']}, model {results['model']}, {events:,} events after the first of {cuts} cuts, "
        f"items ranked among {describe_candidates(results['protocol'], results['items'])}",
        _policy_table(results),
        _cut_table(results),
        f"{LEGEND}; age: from the first cut to the middle of the judged events\n"
        f"difference to best: mean difference per event to {results['best']}; intervals: bootstrap over users\n"
        f"seconds: of training or updating, for online also of ranking; runs: {results['runs']}",
    ]
    if results["gain_of_retraining"]:
        parts.append(_answer(results))
    return "\n\n".join(parts)


def _policy_table(results: dict[str, Any]) -> str:
    rows = results["policies"]
    lines = [["policy", "MRR, 95 % interval", "difference to best", "Recall@10, 95 % interval", "seconds"]]
    for row in rows:
        compared = row.get("difference_to_best")
        cell = metric_cell("mrr", compared, signed=True) if compared else ""
        lines.append(
            [row["policy"], metric_cell("mrr", row), cell, metric_cell("recall@10", row), f"{row['seconds']:,.1f}"]
        )
    return table(lines)


def _cut_table(results: dict[str, Any]) -> str:
    policies = [row["policy"] for row in results["policies"]]
    lines = [["cut", "events", "age", *(f"MRR {policy}" for policy in policies)]]
    for cut in results["cuts"]:
        of_cut = {row["policy"]: row for row in results["rows"] if row["cut"] == cut["cut"]}
        values = mark_best("mrr", [of_cut[policy]["mrr"] for policy in policies])
        lines.append([str(cut["cut"]), f"{cut['events']:,}", duration(cut["age"]), *values])
    return table(lines)


def _answer(results: dict[str, Any]) -> str:
    """What retraining gained over the parameters of the first cut, in one sentence."""
    gains = results["gain_of_retraining"]
    ages = {cut["cut"]: duration(cut["age"]) for cut in results["cuts"]}
    better = [gain for gain in gains if gain["intervals"]["mrr"][0] > 0]
    if not better:
        return (
            f"Retraining did not pay: up to {ages[gains[-1]['cut']]} after training no cut has a clear gain in MRR."
        )
    first, last = better[0], gains[-1]
    at_first, at_last = (metric_cell("mrr", gain, signed=True) for gain in (first, last))
    return (
        f"Retraining pays from an age of {ages[first['cut']]} (cut {first['cut']}: MRR {at_first}); "
        f"at {ages[last['cut']]} it gains {at_last}."
    )
