"""A picture of a log: activity over time, and how many events users and items have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.log import EventLog
from dynedge.data.statistics import degrees
from dynedge.report.style import BLUE, ORANGE, figure, save, tidy


def draw_log(log: EventLog, path: Path) -> None:
    fig = figure(13, 4)
    left, middle, right = fig.subplots(1, 3)
    _draw_activity(left, log)
    _draw_degrees(middle, degrees(log.user, log.num_users), "user", BLUE)
    _draw_degrees(right, degrees(log.item, log.num_items), "item", ORANGE)
    fig.suptitle(f"{len(log):,} events of {log.num_users:,} users with {log.num_items:,} items")
    save(fig, path)


def _draw_activity(ax: Any, log: EventLog) -> None:
    time = log.time[:: max(len(log) // 2_000_000, 1)]
    days = (time - time[0]) / 86400
    counts, bins = np.histogram(days, bins=120)
    ax.fill_between(bins[:-1], counts * (len(log) / len(time)), step="post", color=BLUE, alpha=0.8, linewidth=0)
    tidy(ax, "Activity over time", xlabel="days since the first event", ylabel=f"events per {_width(bins)}")
    ax.set_ylim(bottom=0)


def _width(bins: Any) -> str:
    hours = float(bins[1] - bins[0]) * 24
    return (
        f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours" if hours >= 1 else f"{hours * 60:.1f} min"
    )


def _draw_degrees(ax: Any, counts: Any, what: str, color: str) -> None:
    """Entities by their number of events, in bins that grow by a tenth: on these axes a power law is a line."""
    edges = np.unique(np.rint(np.geomspace(1, max(int(counts.max(initial=1)), 2) + 1, 60)).astype(np.int64))
    found, _ = np.histogram(counts, edges)
    middle = np.sqrt(edges[:-1] * (edges[1:] - 1.0).clip(1))
    shown = found > 0
    ax.scatter(middle[shown], (found / np.diff(edges))[shown], s=18, color=color)
    tidy(ax, f"Events per {what}", xscale="log", yscale="log", xlabel="events", ylabel=f"{what}s with so many")
