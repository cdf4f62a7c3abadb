"""`dynedge compare LOG`: trains and evaluates models on one log; prints a leaderboard and writes an HTML report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import typer

from dynedge.cli import stopped
from dynedge.cli.tables import LEGEND, list_table, mark_best, metric_cell, table


def compare_log(
    path: Path,
    models: str,
    seeds: int,
    epochs: int | None,
    runs: Path | None,
    report: Path | None,
    protocol: str,
    lists: bool | None,
    as_json: bool,
) -> None:
    """Trains and evaluates the models, prints the leaderboard and writes the report."""
    from dynedge.data.log import read_log
    from dynedge.evaluation.board import TGB
    from dynedge.experiments.compare_models import run_benchmark
    from dynedge.report.leaderboard_page import check_folder, write_page
    from dynedge.utils.process_group import process_group
    from dynedge.utils.signals import StoppedBySignal

    if report:
        check_folder(report)
    names = [name.strip() for name in models.split(",") if name.strip()]
    suffix = "-tgb-runs" if protocol == TGB else "-runs"  # another split, hence other runs
    folder = runs or path.resolve().with_name(f"{path.resolve().name}{suffix}")
    settings: dict[str, Any] = {"seeds": seeds, "epochs": epochs, "protocol": protocol, "lists": lists}
    try:
        with process_group() as group:
            leaderboard = run_benchmark(read_log(path), names, folder, **settings, group=group)
    except StoppedBySignal as signal:
        raise stopped(signal, signal.exit_code, "run the same command again to continue") from None
    if not group.is_first:
        return
    print(json.dumps(leaderboard) if as_json else _text(leaderboard))
    if report:
        print(f"wrote {write_page(leaderboard, report)}", file=sys.stderr)
    if leaderboard["best"] is None:
        raise typer.Exit(3)


def _text(leaderboard: dict[str, Any]) -> str:
    from dynedge.evaluation.summary import describe_candidates

    rows = [row for row in leaderboard["rows"] if row["seeds"]]
    failed = [f"  {row['model']}: {row['error']}" for row in leaderboard["rows"] if row["error"]]
    parts = [
        f"{leaderboard['log']}, {leaderboard['events']:,} test events of {leaderboard['users']:,} users, "
        f"items ranked among {describe_candidates(leaderboard['protocol'], leaderboard['items'])}"
    ]
    if rows:
        parts.append(_table(rows))
        if lists := list_table([(row["model"], row["lists"] or {}) for row in rows], "model"):
            parts.append(lists.rstrip())
        parts.append(
            f"{LEGEND}; difference to best: mean difference per event to {leaderboard['best']}\n"
            "intervals: bootstrap over users; with several seeds, each event counts with its mean over seeds\n"
            f"runs: {leaderboard['runs']}"
        )
    if failed:
        parts.append("\n".join(["failed:", *failed]))
    return "\n\n".join(parts)


def _table(rows: list[dict[str, Any]]) -> str:
    from dynedge.utils.progress import quantity

    measured = "MRR, 95 % interval", "difference to best", "Recall@10, 95 % interval"
    lines = [["model", "seeds", *measured, "s/epoch", "peak MiB", "parameters"]]
    mrr, recall = (mark_best(name, [row[name] for row in rows]) for name in ("mrr", "recall@10"))
    for row, *marked in zip(rows, mrr, recall, strict=True):
        difference, seconds, peak = row["difference_to_best"], row["seconds_per_epoch"], row["peak_mib"]
        lines.append(
            [
                row["model"],
                str(len(row["seeds"])),
                marked[0] + _interval(row["intervals"]["mrr"]),
                metric_cell("mrr", difference, signed=True) if difference else "",
                marked[1] + _interval(row["intervals"]["recall@10"]),
                "-" if seconds is None else f"{seconds:.3g}",
                "-" if peak is None else f"{peak:,.0f}",
                quantity(row["parameters"]),
            ]
        )
    return table(lines)


def _interval(bounds: list[float] | None) -> str:
    return f" [{bounds[0]:.4f}, {bounds[1]:.4f}]" if bounds else ""
