"""Plots the cost of an epoch against events, width and d-nodes, from the file that `gpu.py --csv FILE` wrote.

python benchmarks/gpu_plot.py FILE.csv docs/pictures/gpu.png
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

from dynedge.report.style import BLUE, GREEN, GREY, ORANGE, figure, log_scales, save, style_axes

Rows = list[dict[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, help="File written by gpu.py --csv.")
    parser.add_argument("image", type=Path, help="Image file to write.")
    args = parser.parse_args()
    with open(args.csv) as file:
        rows = list(csv.DictReader(file))
    fig = figure(11, 3.6)
    events, width, dnodes = fig.subplots(1, 3)
    _curve(events, [row for row in rows if row["sweep"] == "events"], "training", 1e6)
    style_axes(events, "events", xlabel="training events, millions", ylabel="seconds per epoch")
    _curve(width, [row for row in rows if row["sweep"] == "dim"], "dim")
    style_axes(width, "width of a state", xlabel="d", ylabel="seconds per epoch")
    _dnodes(dnodes, [row for row in rows if row["sweep"] == "dnodes"])
    save(fig, args.image)


def _curve(axes: Any, rows: Rows, x: str, unit: float = 1.0) -> None:
    log_scales(axes)
    axes.set_xticks(ticks := sorted({float(row[x]) / unit for row in rows}), [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    for number, name in enumerate(dict.fromkeys(row["log"] for row in rows)):
        points = sorted(
            (float(row[x]) / unit, float(row["seconds"]), float(row["floor"])) for row in rows if row["log"] == name
        )
        color = (BLUE, ORANGE, GREEN)[number % 3]
        at, seconds, floor = zip(*points, strict=True)
        axes.plot(at, seconds, "o-", color=color, label=name)
        axes.plot(at, floor, "--", color=color, alpha=0.5, label="lower bound")
    axes.legend(frameon=False, fontsize=8)


def _dnodes(axes: Any, rows: Rows) -> None:
    """Draws seconds as bars and Recall@10 as a line, as in the paper's ablation figure."""
    rows = sorted(rows, key=lambda row: int(row["dnodes"]))
    names = [row["dnodes"] for row in rows]
    axes.bar(names, [float(row["seconds"]) for row in rows], color=BLUE)
    style_axes(axes, "d-nodes per window", xlabel="K", ylabel="seconds per epoch")
    right = axes.twinx()
    right.plot(names, [float(row["recall@10"]) for row in rows], "o-", color=ORANGE)
    right.set(ylabel="Recall@10", ylim=(0, None))
    right.yaxis.label.set_color(ORANGE)
    right.spines["top"].set_color(GREY)


if __name__ == "__main__":
    main()
