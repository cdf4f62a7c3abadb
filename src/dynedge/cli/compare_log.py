"""`dynedge compare LOG`: models trained and judged on one log, as a table and a page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import typer

from dynedge.cli.compare import LEGEND, marked
from dynedge.cli.evaluate import among, cell, table


def compare_log(
    path: Path,
    models: str,
    seeds: int,
    epochs: int | None,
    runs: Path | None,
    report: Path | None,
    protocol: str,
    as_json: bool,
) -> None:
    """Train, rank, print, and write the page if there is to be one."""
    from dynedge.data.log import read_log
    from dynedge.experiments.benchmark import run_benchmark
    from dynedge.report.leaderboard_page import check_folder, write_page
    from dynedge.utils.signals import StoppedBySignal

    if report:
        check_folder(report)
    names = [name.strip() for name in models.split(",") if name.strip()]
    folder = runs or path.resolve().with_name(f"{path.resolve().name}-runs")
    try:
        found = run_benchmark(read_log(path), names, folder, seeds=seeds, epochs=epochs, protocol=protocol)
    except StoppedBySignal as stopped:
        print(f"dynedge: stopped by {stopped}; the same command goes on where it stood.", file=sys.stderr)
        raise typer.Exit(stopped.exit_code) from None
    print(json.dumps(found) if as_json else _text(found))
    if report:
        print(f"wrote {write_page(found, report)}", file=sys.stderr)
    if found["best"] is None:
        raise typer.Exit(3)


def _text(found: dict[str, Any]) -> str:
    """The rows with numbers as a table, then a line for each failure."""
    rows = [row for row in found["rows"] if row["seeds"]]
    failed = [f"  {row['model']}: {row['error']}" for row in found["rows"] if row["error"]]
    parts = [
        f"{found['log']}, {found['events']:,} test events of {found['users']:,} users, "
        f"each item ranked among {among(found['protocol'], found['items'])}"
    ]
    if rows:
        parts.append(_table(rows))
        parts.append(
            f"{LEGEND}; less the best: than {found['best']}, event by event\n"
            "intervals are of resampled users; of several seeds, every event counts with its mean\n"
            f"runs: {found['runs']}"
        )
    if failed:
        parts.append("\n".join(["failed:", *failed]))
    return "\n\n".join(parts)


def _table(rows: list[dict[str, Any]]) -> str:
    from dynedge.utils.progress import quantity

    lines = [["model", "seeds", "MRR, 95 % interval", "less the best", "Recall@10", "s/epoch", "MiB", "parameters"]]
    mrr, recall = (marked(name, [row[name] for row in rows]) for name in ("mrr", "recall@10"))
    for row, *texts in zip(rows, mrr, recall, strict=True):
        less = row["difference_to_best"]
        spent, peak = row["seconds_per_epoch"], row["peak_mib"]
        lines.append(
            [
                row["model"],
                str(len(row["seeds"])),
                texts[0] + _bounds(row["intervals"]["mrr"]),
                cell("mrr", less, signed=True) if less else "",
                texts[1] + _bounds(row["intervals"]["recall@10"]),
                "-" if spent is None else f"{spent:.3g}",
                "-" if peak is None else f"{peak:,.0f}",
                quantity(row["parameters"]),
            ]
        )
    return table(lines)


def _bounds(interval: list[float] | None) -> str:
    return f" [{interval[0]:.4f}, {interval[1]:.4f}]" if interval else ""
