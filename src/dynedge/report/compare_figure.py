"""Figure of a comparison of runs: metrics with confidence intervals, and paired differences to the best run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynedge.evaluation.summary import describe_candidates
from dynedge.report.style import BLUE, GREY, ORANGE, figure, save, style_axes

METRICS = {"mrr": "MRR", "recall@10": "Recall@10"}
XLABEL = "mean with 95 % confidence interval"

Values = dict[str, Any]


def draw_comparison(comparison: Values, path: Path) -> None:
    """Writes the figure of `dynedge compare --plot`; `comparison` is the output of its --json."""
    runs: list[Values] = comparison["runs"]
    colors = [ORANGE, BLUE, *[GREY] * len(runs)]
    fig = figure(13, 2.2 + 0.5 * len(runs))
    axes = fig.subplots(1, 3, sharey=True)
    for axis, (name, title) in zip(axes, METRICS.items(), strict=False):
        _draw_intervals(axis, [run["test"] for run in runs], name, colors, "{:.3f}")
        style_axes(axis, title, xlabel=XLABEL)
    axes[2].axvline(0, color=ORANGE, linewidth=1.5, zorder=1)
    _draw_intervals(axes[2], [run.get("difference_to_best") for run in runs], "mrr", colors, "{:+.3f}")
    style_axes(axes[2], "MRR, difference to best", xlabel=XLABEL)
    for axis in axes:
        axis.locator_params(axis="x", nbins=5)
        axis.margins(x=0.08)
        axis.tick_params(axis="y", length=0)
    axes[0].set_yticks(range(len(runs)), [_label(run, runs) for run in runs])
    axes[0].set_ylim(len(runs) - 0.5, -0.6)
    test = runs[0]["test"]
    candidates = describe_candidates(comparison["protocol"], comparison["items"])
    fig.suptitle(f"{test['events']:,} test events of {test['users']:,} users, items ranked among {candidates}")
    save(fig, path)


def _label(run: Values, runs: list[Values]) -> str:
    """The folder's name, or its path if another run has the same name; with the model if the name lacks it."""
    same_name = [other for other in runs if Path(other["run"]).name == Path(run["run"]).name]
    name = Path(run["run"]).name if len(same_name) == 1 else run["run"]
    return f"{name} ({run['model']})" if run["model"] not in name else name


def _draw_intervals(axis: Any, summaries: list[Values | None], name: str, colors: list[str], form: str) -> None:
    """One row per run: a bar for the interval, a dot for the mean and its value above."""
    background = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
    for row, (summary, color) in enumerate(zip(summaries, colors, strict=False)):
        if summary is None or summary[name] is None:
            continue
        low, high = summary["intervals"][name]
        axis.plot([low, high], [row, row], color=color, linewidth=3, solid_capstyle="round", alpha=0.5)
        axis.plot([summary[name]], [row], "o", color=color)
        text = form.format(summary[name])
        axis.annotate(text, (summary[name], row), (0, 8), ha="center", fontsize=9, color="black", bbox=background,
                      textcoords="offset points")  # fmt: skip
