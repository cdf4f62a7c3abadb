"""Figure of a log: activity over time, and the distributions of events per user and per item."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.log import EventLog
from dynedge.data.statistics import degrees
from dynedge.report.style import BLUE, ORANGE, figure, log_scales, save, style_axes
from dynedge.utils.array_type import Array

BINS = 120
MAX_EVENTS = 2_000_000  # the histogram of a larger log is made from evenly spaced events


def draw_log(log: EventLog, path: Path) -> None:
    """Writes the figure of `dynedge info --plot`."""
    fig = figure(13, 4.2)
    left, middle, right = fig.subplots(1, 3)
    _draw_activity(left, log)
    draw_distribution(middle, degrees(log.user, log.num_users), "user", BLUE)
    draw_distribution(right, degrees(log.item, log.num_items), "item", ORANGE)
    fig.suptitle(f"{len(log):,} events, {log.num_users:,} users, {log.num_items:,} items")
    save(fig, path)


def _draw_activity(axes: Any, log: EventLog) -> None:
    time = log.time[:: max(len(log) // MAX_EVENTS, 1)]
    days = (time - time[0]) / 86400
    counts, bins = np.histogram(days, bins=BINS)
    axes.fill_between(bins[:-1], counts * (len(log) / len(time)), step="post", color=BLUE, alpha=0.8, linewidth=0)
    width = _duration(float(bins[1] - bins[0]) * 24)
    style_axes(axes, "Activity over time", xlabel="days since the first event", ylabel=f"events per {width}")
    axes.set_ylim(bottom=0)


def _duration(hours: float) -> str:
    if hours >= 48:
        return f"{hours / 24:.1f} days"
    return f"{hours:.1f} hours" if hours >= 1 else f"{hours * 60:.1f} minutes"


def draw_distribution(axes: Any, counts: Array, entity: str, color: str) -> None:
    """How many entities have at least x events. On logarithmic axes a power law is a straight line."""
    events, entities = np.unique(counts[counts > 0], return_counts=True)
    at_least = entities[::-1].cumsum()[::-1]
    axes.plot(events, at_least, color=color, marker="o", markersize=4, linewidth=1.5)
    ylabel = f"number of {entity}s with at least x events"
    style_axes(axes, f"Events per {entity}", xlabel="x: number of events", ylabel=ylabel)
    log_scales(axes)
