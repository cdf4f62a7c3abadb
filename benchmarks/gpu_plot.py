"""Pictures of how cost grows, from the rows that `gpu.py --csv FILE` wrote.

python benchmarks/gpu_plot.py FILE.csv docs/pictures/gpu.png
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

from dynedge.report.style import BLUE, GREEN, GREY, ORANGE, figure, log_scales, save, style_axes

Rows = list[dict[str, str]]


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    with open(source) as file:
        rows = list(csv.DictReader(file))
    fig = figure(11, 3.6)
    events, width, dnodes = fig.subplots(1, 3)
    _curve(events, [row for row in rows if row["sweep"] == "events"], "training", 1e6)
    style_axes(events, "events", xlabel="training events, millions", ylabel="seconds an epoch")
    _curve(width, [row for row in rows if row["sweep"] == "dim"], "dim")
    style_axes(width, "width of a state", xlabel="d", ylabel="seconds an epoch")
    _dnodes(dnodes, [row for row in rows if row["sweep"] == "dnodes"])
    save(fig, target)


def _curve(axes: Any, rows: Rows, x: str, unit: float = 1.0) -> None:
    log_scales(axes)
    axes.set_xticks(places := sorted({float(row[x]) / unit for row in rows}), [f"{place:g}" for place in places])
    axes.set_xticks([], minor=True)
    for number, name in enumerate(dict.fromkeys(row["log"] for row in rows)):
        mine = [row for row in rows if row["log"] == name]
        own = sorted((float(row[x]) / unit, float(row["seconds"]), float(row["floor"])) for row in mine)
        color = (BLUE, ORANGE, GREEN)[number % 3]
        axes.plot([one[0] for one in own], [one[1] for one in own], "o-", color=color, label=name)
        axes.plot([one[0] for one in own], [one[2] for one in own], "--", color=color, alpha=0.5, label="its floor")
    axes.legend(frameon=False, fontsize=8)


def _dnodes(axes: Any, rows: Rows) -> None:
    """Bars are seconds, the line is Recall@10: the paper's picture."""
    rows = sorted(rows, key=lambda row: int(row["dnodes"]))
    names = [row["dnodes"] for row in rows]
    axes.bar(names, [float(row["seconds"]) for row in rows], color=BLUE)
    style_axes(axes, "d-nodes a window", xlabel="K", ylabel="seconds an epoch")
    beside = axes.twinx()
    beside.plot(names, [float(row["recall@10"]) for row in rows], "o-", color=ORANGE)
    beside.set(ylabel="Recall@10", ylim=(0, None))
    beside.yaxis.label.set_color(ORANGE)
    beside.spines["top"].set_color(GREY)


if __name__ == "__main__":
    main()
