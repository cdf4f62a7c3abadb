"""The command `evaluate`: ranking metrics of a run on its validation and test events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dynedge.cli import app
from dynedge.cli.options import Json, Lists, Protocol, RunFolder
from dynedge.cli.tables import metric_cell, table


@app.command()
def evaluate(
    run: RunFolder,
    log: Annotated[Path | None, typer.Argument(metavar="LOG", help="The log of the run, if it was moved.")] = None,
    protocol: Protocol = "full",
    lists: Lists = None,
    as_json: Json = False,
) -> None:
    """Compute ranking metrics on validation and test events.

    Events are processed in time order: the item of each event is ranked, then the event updates the states. Ranks and
    recommended lists are cached in RUN/ranks. docs/evaluation.md describes the protocol and all metrics.
    """
    from dynedge.runs.evaluate_run import PARTS, evaluate_run
    from dynedge.runs.list_evaluation import evaluate_lists, with_lists
    from dynedge.utils.process_group import process_group

    with process_group() as group:
        evaluated = evaluate_run(run, log, protocol=protocol, group=group)
    if not group.is_first:
        return
    summary: dict[str, Any] = {
        "run": str(run),
        "model": evaluated.config.name,
        "log": str(evaluated.log.path),
        "protocol": protocol,
        "items": evaluated.log.num_items,
        **({} if evaluated.rate is None else {"rate": evaluated.rate}),
        **{part: evaluated.summary(part) for part in reversed(PARTS)},
    }
    if with_lists(lists, protocol):
        summary["test"] |= evaluate_lists(evaluated)
    print(json.dumps(summary) if as_json else _text(summary))


def _text(summary: dict[str, Any]) -> str:
    from dynedge.evaluation.list_metrics import TITLES
    from dynedge.evaluation.metrics import METRICS, title
    from dynedge.evaluation.summary import BREAKDOWN_METRICS, describe_candidates

    parts = [summary["valid"], summary["test"]]
    metrics = [["metric", "validation, 95 % interval", "test, 95 % interval"]]
    metrics += [["events", *(f"{part['events']:,}" for part in parts)]]
    metrics += [["users", *(f"{part['users']:,}" for part in parts)]]
    metrics += [[title(name), *(metric_cell(name, part) for part in parts)] for name in METRICS]
    groups = [["group of test events", "events", *map(title, BREAKDOWN_METRICS)]]
    for name, group in summary["test"]["breakdown"].items():
        groups.append([name, f"{group['events']:,}", *(metric_cell(metric, group) for metric in BREAKDOWN_METRICS)])
    tables = [table(metrics)]
    if "list_events" in summary["test"]:
        lists = [["lists of 10 items", "test"], ["lists", f"{summary['test']['list_events']:,}"]]
        values = {shown: summary["test"][name] for name, shown in TITLES.items()}
        tables.append(
            table(lists + [[name, "-" if value is None else f"{value:.4f}"] for name, value in values.items()])
        )
    candidates = describe_candidates(summary["protocol"], summary["items"])
    title_line = f"{summary['run']}: {summary['model']} on {summary['log']}, items ranked among {candidates}"
    if "rate" in summary:
        title_line += f"; online learning, learning rates × {summary['rate']:g} (chosen on validation events)"
    return "\n\n".join([title_line, *tables, table(groups)])
