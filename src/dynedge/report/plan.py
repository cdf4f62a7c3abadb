"""Pictures of a plan: longest path against d-nodes for every method, and the first events as a small DAG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.log import EventLog
from dynedge.plan.dnodes import select_dnodes
from dynedge.plan.levels import NO_DNODES, levels
from dynedge.plan.links import ACTIVE
from dynedge.plan.planner import Plan
from dynedge.report.style import BLUE, GREEN, GREY, PINK, RED, figure, log_scales, save, tidy
from dynedge.utils.arrays import Array

METHOD_STYLES = {
    "best": (BLUE, "o", "-"),
    "longest-path": (RED, "s", "--"),
    "depth": (PINK, "^", "-."),
    "cut-by-time": (GREY, "D", ":"),
}
LINK, LANE = "#7C858F", "#E3E6EA"
ENTRY_DOT, PSI = "o", "s"


@dataclass(frozen=True)
class Picture:
    """A few events to draw: their links and lanes, and the d-nodes of the picture after."""

    prev: Array  # int32[n, 2]
    lanes: Array  # int[n, 2]: the lane of each event's user and item
    names: Sequence[str]  # of the lanes
    cut: Array


def first_events(plan: Plan, *, least: int = 8, most: int = 16, lanes: int = 10, dnodes: int = 3) -> Picture:
    """The first events of a plan's log: `least` of them, and more while they stay on a few lanes."""
    log, n = plan.log, min(least, plan.config.train_end)
    while n < min(most, plan.config.train_end) and _lanes(log, n + 1) <= lanes:
        n += 1
    user, item = np.array(log.user[:n]), np.array(log.item[:n])
    met = [(side, int(entity)) for pair in zip(user, item, strict=True) for side, entity in enumerate(pair)]
    order = list(dict.fromkeys(met))  # by first event, which keeps links short
    at = [order.index(entity) for entity in met]
    names = [
        f"user {log.user_ids[entity]}" if side == 0 else f"item {log.item_ids[entity]}" for side, entity in order
    ]
    prev = plan.linker(user, item)
    cut = select_dnodes(prev, "best", max_dnodes=dnodes)
    return Picture(prev, np.array(at, int).reshape(n, 2), [_short(name) for name in names], cut)


def _lanes(log: EventLog, n: int) -> int:
    return len(np.unique(log.user[:n])) + len(np.unique(log.item[:n]))


def _short(name: str, most: int = 18) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def draw(path: Path, curves: Mapping[str, Sequence[tuple[float, float]]], uncut: float, picture: Picture) -> None:
    """One figure: `curves` of (d-nodes, longest path) for each method, and the picture before and after."""
    fig = figure(13, 11)
    grid = fig.add_gridspec(2, 2, height_ratios=(1.0, 1.15))
    _draw_curves(fig.add_subplot(grid[0, :]), curves, uncut)
    _draw_events(fig.add_subplot(grid[1, 0]), picture, NO_DNODES)
    _draw_events(fig.add_subplot(grid[1, 1]), picture, picture.cut)
    fig.legend(handles=_symbols(), loc="outside lower center", ncols=5, frameon=False)
    save(fig, path)


def _draw_curves(axes: Any, curves: Mapping[str, Sequence[tuple[float, float]]], uncut: float) -> None:
    axes.axhline(uncut, color="black", linewidth=1, linestyle=(0, (1, 3)), label=f"no d-nodes: {uncut:.4g}")
    for method, points in curves.items():
        color, marker, dashes = METHOD_STYLES[method]
        x, y = np.array([point for point in points if point[0] > 0]).reshape(-1, 2).T
        axes.plot(x, y, color=color, marker=marker, linestyle=dashes, linewidth=2, markersize=7, label=method)
    labels = {"xlabel": "d-nodes a window", "ylabel": "longest path (mean over windows)"}
    tidy(axes, "How far d-nodes shorten the longest path", **labels)
    log_scales(axes)
    axes.legend(frameon=False, loc="best")


def _draw_events(axes: Any, picture: Picture, cut: Array) -> None:
    """States as dots numbered and coloured by level, on one lane an entity; d-nodes as green φ beside their state."""
    prev, level = picture.prev, levels(picture.prev, cut)
    phi = set(cut.tolist())
    shades = _shades(int(levels(prev).max(initial=1)))
    axes.hlines(range(len(picture.names)), 0, len(prev) + 1, color=LANE, linewidth=1, zorder=0)
    for k, side in np.ndindex(prev.shape):
        lane, p = int(picture.lanes[k, side]), prev[k, side]
        if p < 0:  # a state from before these events, or ψ: drawn where it is first read
            axes.plot(
                k + 0.5, lane, marker=PSI if p == ACTIVE else ENTRY_DOT, color="white", markeredgecolor=LINK, ms=7
            )
        start = k + 0.5 if p < 0 else p + 1 + (0.5 if 2 * p + side in phi else 0.0)
        if p != ACTIVE:
            axes.plot([start, k + 1], [lane, lane], color=LINK, linewidth=1.8, zorder=1)
        if prev[k, 1 - side] != ACTIVE:  # leaves its lane only just before it is read: no line crosses another's dot
            axes.plot([k + 0.5, k + 1], [lane, picture.lanes[k, 1 - side]], color=LINK, linewidth=0.9, zorder=1)
        if p != ACTIVE:
            _draw_state(axes, k + 1, lane, int(level[k]), shades, cut=2 * k + side in phi)
    _frame_events(axes, picture, len(cut), int(level.max(initial=0)))


def _frame_events(axes: Any, picture: Picture, dnodes: int, steps: int) -> None:
    n, lanes = len(picture.prev), len(picture.names)
    what = f", {dnodes} d-node{'s' * (dnodes != 1)} as φ" if dnodes else ""
    axes.set_title(f"The first {n} events{what}: {steps} step{'s' * (steps != 1)}", loc="left", fontweight="bold")
    axes.set(xlim=(0.2, n + 0.8), ylim=(lanes - 0.4, -0.6), xlabel="event, by time; each dot shows its level")
    axes.set_xticks(range(1, n + 1))
    axes.set_yticks(range(lanes), picture.names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_state(axes: Any, x: float, lane: int, level: int, shades: Array, *, cut: bool) -> None:
    color = shades[level - 1]
    axes.plot(x, lane, marker="o", color=color, markersize=15, zorder=3)
    ink = "white" if float(np.dot(color[:3], (0.3, 0.6, 0.1))) < 0.5 else "black"
    axes.annotate(str(level), (x, lane), ha="center", va="center", color=ink, fontsize=9, zorder=4)
    if cut:
        axes.plot(
            x, lane, marker="o", markersize=19, color="none", markeredgecolor=GREEN, markeredgewidth=2, zorder=3
        )
        axes.plot(x + 0.5, lane, marker="D", markersize=9, color=GREEN, zorder=3)


def _symbols() -> list[Any]:
    from matplotlib.lines import Line2D

    dark = "#2A0593"
    looks: dict[str, dict[str, Any]] = {
        "state from before": {"marker": ENTRY_DOT, "color": "white", "markeredgecolor": LINK, "markersize": 7},
        "ψ of an active entity": {"marker": PSI, "color": "white", "markeredgecolor": LINK, "markersize": 7},
        "state written": {"marker": "o", "color": dark, "markersize": 11},
        "d-node": {"marker": "o", "color": dark, "markeredgecolor": GREEN, "markeredgewidth": 2, "markersize": 12},
        "its φ, read instead": {"marker": "D", "color": GREEN, "markersize": 8},
    }
    return [Line2D([], [], linestyle="", label=label, **look) for label, look in looks.items()]


def _shades(count: int) -> Array:
    from matplotlib import colormaps

    return np.asarray(colormaps["plasma"](np.linspace(0.05, 0.9, count)))
