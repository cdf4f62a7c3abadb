"""A picture of runs beside each other: metrics with their intervals, and paired differences to the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynedge.report.style import BLUE, GREY, ORANGE, figure, save, tidy

Told = dict[str, Any]


def draw_comparison(found: Told, path: Path) -> None:
    """`found` as `dynedge compare --json` prints it."""
    runs: list[Told] = found["runs"]
    labels = [_label(run, runs) for run in runs]
    fig = figure(13, 1.4 + 0.45 * len(runs))
    axes = fig.subplots(1, 3, sharey=True)
    colors = [ORANGE, BLUE, *[GREY] * len(runs)]
    for axis, name, title in zip(axes, ("mrr", "recall@10"), ("MRR", "Recall@10"), strict=False):
        _draw_points(axis, [run["test"] for run in runs], name, colors)
        tidy(axis, f"{title} of {runs[0]['test']['events']:,} test events")
    _draw_points(axes[2], [run.get("difference_to_best") for run in runs], "mrr", colors)
    axes[2].axvline(0, color=ORANGE, linewidth=1)
    tidy(axes[2], "MRR less the best's, paired", xlabel="bars: 95 % intervals, users resampled")
    axes[0].set_yticks(range(len(runs)), labels)
    axes[0].set_ylim(len(runs) - 0.5, -0.5)
    save(fig, path)


def _label(run: Told, runs: list[Told]) -> str:
    """The folder's name, or as much of its path as tells it from the others."""
    same = [one for one in runs if Path(one["run"]).name == Path(run["run"]).name]
    name = Path(run["run"]).name if len(same) == 1 else run["run"]
    return f"{name} ({run['model']})" if run["model"] not in name else name


def _draw_points(axis: Any, told: list[Told | None], name: str, colors: list[str]) -> None:
    for row, (one, color) in enumerate(zip(told, colors, strict=False)):
        if one is None or one[name] is None:
            continue
        low, high = one["intervals"][name]
        axis.plot([low, high], [row, row], color=color, linewidth=3, solid_capstyle="round", alpha=0.5)
        axis.plot([one[name]], [row], "o", color=color)
        axis.annotate(f"{one[name]:.3f}", (one[name], row), (0, 7), ha="center", fontsize=8, color=color,
                      textcoords="offset points")  # fmt: skip
