"""Figure of a backtest: MRR by policy against the time since the first training, and the seconds spent."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

from dynedge.report.style import BLUE, GREEN, GREY, ORANGE, PINK, RED, figure, integer_ticks, save, style_axes

COLORS = {"frozen": GREY, "state": BLUE, "retrain": ORANGE, "update": GREEN, "online": PINK}
UNITS = (86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds")


def draw_backtest(results: dict[str, Any], path: Path) -> None:
    """Writes the figure of `dynedge backtest --plot`; `results` is the output of its --json."""
    cuts = results["cuts"]
    size, unit = next(((size, unit) for size, unit in UNITS if cuts[-1]["age"] >= 2 * size), UNITS[-1])
    ages = [cut["age"] / size for cut in cuts]
    fig = figure(11, 4.2)
    quality, cost = fig.subplots(1, 2, width_ratios=(3, 2))
    for total in results["policies"]:
        policy, color = total["policy"], COLORS.get(total["policy"], RED)
        rows = [row for row in results["rows"] if row["policy"] == policy]
        low, high = zip(*(row["intervals"]["mrr"] for row in rows), strict=True)
        quality.fill_between(ages, low, high, color=color, alpha=0.15, linewidth=0)
        quality.plot(ages, [row["mrr"] for row in rows], "o-", color=color, label=policy)
        spent = list(accumulate(row["seconds"] for row in rows))
        cost.plot([cut["cut"] for cut in cuts], spent, "o-", color=color, label=f"{policy}: {spent[-1]:,.0f} s")
    style_axes(quality, "MRR", xlabel=f"{unit} from the first training to the middle of the judged events")
    style_axes(cost, "Seconds of training so far", xlabel="cut")
    integer_ticks(cost.xaxis)
    quality.set_ylim(bottom=0)
    cost.set_ylim(bottom=0)
    for axes in (quality, cost):
        axes.legend(frameon=False)
    fig.suptitle(f"{Path(results['log']).name}, model {results['model']}: how often must it be trained again?")
    save(fig, path)
