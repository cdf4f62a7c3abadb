"""Figure of a plan: longest path by number of d-nodes for every method, and the graph of a few events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dynedge.data.log import EventLog
from dynedge.plan.dnodes import select_dnodes
from dynedge.plan.levels import NO_DNODES, levels, longest_path
from dynedge.plan.links import ACTIVE
from dynedge.plan.planner import Plan
from dynedge.report.style import BLUE, GREEN, GREY, GRID, PINK, RED, figure, log_scales, save, style_axes
from dynedge.utils.array_type import Array

METHOD_STYLES = {  # colour, marker, line
    "best": (BLUE, "o", "-"),
    "longest-path": (RED, "s", "--"),
    "depth": (PINK, "^", "-."),
    "cut-by-time": (GREY, "D", ":"),
}
METHOD_LABELS = {"best": "best (default)", "longest-path": "longest-path (Algorithm 2 of the EDGE paper)"}
LINK = "#7C858F"
SEARCHED = 10_000  # first events among which an example is looked for
INITIAL, PSI, PHI = "o", "s", "D"  # markers of what is read but not written by the events


@dataclass(frozen=True)
class EventGraph:
    """The links of a few events, with one lane for each user and item."""

    first: int  # number of the first event, counted from 1
    prev: Array  # int32[n, 2]
    lanes: Array  # int[n, 2]: the lane of each event's user and item
    names: Sequence[str]  # of the lanes
    dnodes: Array  # codes of the d-nodes in the second drawing


def example_events(plan: Plan, *, least: int = 8, most: int = 16, lanes: int = 10, dnodes: int = 3) -> EventGraph:
    """The graph of `least` training events in a row that depend on each other, or of up to `most` that fit."""
    log, end = plan.log, plan.config.train_end
    start = max(range(max(1, min(end - least + 1, SEARCHED))), key=lambda begin: _interest(plan, begin, least, lanes))
    n = min(least, end)
    while n < most and start + n < end and _num_entities(log, start, n + 1) <= lanes:
        n += 1
    user, item = _ids(log, start, n)
    entities = [(side, int(entity)) for pair in zip(user, item, strict=True) for side, entity in enumerate(pair)]
    order = list(dict.fromkeys(entities))  # by first event, which keeps links short
    lane = [order.index(entity) for entity in entities]
    names = [
        f"user {log.user_ids[entity]}" if side == 0 else f"item {log.item_ids[entity]}" for side, entity in order
    ]
    prev = plan.linker(user, item)
    selected = select_dnodes(prev, "best", max_dnodes=dnodes)
    lane_of_event = np.array(lane, int).reshape(n, 2)
    return EventGraph(start + 1, prev, lane_of_event, [_shorten(name) for name in names], selected)


def _interest(plan: Plan, start: int, n: int, lanes: int) -> tuple[bool, int, int]:
    """(fits on the lanes, events that read the states of two different events, longest path).

    A pair that repeats has a long path and shows little.
    """
    prev = plan.linker(*_ids(plan.log, start, n))
    fits = _num_entities(plan.log, start, n) <= lanes
    return fits, int((prev[:, 0] != prev[:, 1]).sum()), longest_path(prev)


def _ids(log: EventLog, start: int, n: int) -> tuple[Array, Array]:
    return np.array(log.user[start : start + n]), np.array(log.item[start : start + n])


def _num_entities(log: EventLog, start: int, n: int) -> int:
    return sum(len(np.unique(ids)) for ids in _ids(log, start, n))


def _shorten(name: str, most: int = 18) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def draw_plan(
    path: Path, curves: Mapping[str, Sequence[tuple[float, float]]], longest_path: float, graph: EventGraph
) -> None:
    """Writes the figure of `dynedge plan --plot`.

    `curves` are points (d-nodes per window, longest path) of each method, `longest_path` is that without d-nodes.
    """
    fig = figure(13, 11)
    grid = fig.add_gridspec(2, 2, height_ratios=(1.0, 1.15))
    draw_curves(fig.add_subplot(grid[0, :]), curves, longest_path)
    draw_graph(fig.add_subplot(grid[1, 0]), graph, NO_DNODES)
    draw_graph(fig.add_subplot(grid[1, 1]), graph, graph.dnodes)
    symbols = graph_symbols(has_active=bool((graph.prev == ACTIVE).any()))
    fig.legend(handles=symbols, loc="outside lower center", ncols=len(symbols), frameon=False)
    save(fig, path)


def draw_curves(axes: Any, curves: Mapping[str, Sequence[tuple[float, float]]], longest_path: float) -> None:
    label = f"without d-nodes: {longest_path:.4g} levels"
    axes.axhline(longest_path, color="black", linewidth=1, linestyle=(0, (1, 3)), label=label)
    for method, points in curves.items():
        color, marker, dashes = METHOD_STYLES[method]
        x, y = np.array([point for point in points if point[0] > 0]).reshape(-1, 2).T
        label = METHOD_LABELS.get(method, method)
        axes.plot(x, y, color=color, marker=marker, linestyle=dashes, linewidth=2, markersize=7, label=label)
    labels = {"xlabel": "d-nodes per window", "ylabel": "longest path (levels, mean over windows)"}
    style_axes(axes, "Longest path by number of d-nodes", **labels)
    log_scales(axes)
    axes.legend(frameon=False, loc="lower left", title="d-node method", alignment="left")


def draw_graph(axes: Any, graph: EventGraph, dnodes: Array) -> None:
    """States as dots with their level, on one lane per entity; a d-node has a green ring, and its φ is a diamond."""
    prev, level = graph.prev, levels(graph.prev, dnodes)
    is_dnode = set(dnodes.tolist())
    shades = _level_colors(int(levels(prev).max(initial=1)))
    axes.hlines(range(len(graph.names)), 0, len(prev) + 1, color=GRID, linewidth=1, zorder=0)
    for k, side in np.ndindex(prev.shape):
        lane, p = int(graph.lanes[k, side]), prev[k, side]
        if p < 0:  # an initial state, or ψ: drawn where it is first read
            marker = PSI if p == ACTIVE else INITIAL
            axes.plot(k + 0.5, lane, marker=marker, color="white", markeredgecolor=LINK, markersize=6, zorder=2)
        start = k + 0.5 if p < 0 else p + 1 + (0.5 if 2 * p + side in is_dnode else 0.0)
        if p != ACTIVE:
            axes.plot([start, k + 1], [lane, lane], color=LINK, linewidth=1.8, zorder=1)
        if prev[k, 1 - side] != ACTIVE:  # leaves its lane just before it is read, so that no line crosses a dot
            axes.plot([k + 0.5, k + 1], [lane, graph.lanes[k, 1 - side]], color=LINK, linewidth=0.9, zorder=1)
        if p != ACTIVE:
            _draw_state(axes, k + 1, lane, int(level[k]), shades, is_dnode=2 * k + side in is_dnode)
    _frame_graph(axes, graph, len(dnodes), int(level.max(initial=0)))


def _frame_graph(axes: Any, graph: EventGraph, dnodes: int, depth: int) -> None:
    n, lanes = len(graph.prev), len(graph.names)
    condition = f"{dnodes} d-node{'s' * (dnodes != 1)}" if dnodes else "without d-nodes"
    title = f"Events {graph.first:,} to {graph.first + n - 1:,}, {condition}: {depth} level{'s' * (depth != 1)}"
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set(xlim=(0.2, n + 0.8), ylim=(lanes - 0.4, -0.6), xlabel="event, in time order (number in a dot: level)")
    axes.set_xticks(range(1, n + 1), [str(graph.first + k) for k in range(n)])
    axes.set_yticks(range(lanes), graph.names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_state(axes: Any, x: float, lane: int, level: int, shades: Array, *, is_dnode: bool) -> None:
    color = shades[level - 1]
    axes.plot(x, lane, marker="o", color=color, markersize=14, zorder=3)
    ink = "white" if float(np.dot(color[:3], (0.3, 0.6, 0.1))) < 0.5 else "black"
    axes.annotate(str(level), (x, lane), ha="center", va="center_baseline", color=ink, fontsize=9, zorder=5)
    if is_dnode:
        ring = {"color": "none", "markeredgecolor": GREEN, "markeredgewidth": 2}
        axes.plot(x, lane, marker="o", markersize=17, zorder=3, **ring)
        axes.plot(x + 0.5, lane, marker=PHI, markersize=7, color=GREEN, markeredgecolor="white", zorder=4)


def graph_symbols(*, has_active: bool) -> list[Any]:
    from matplotlib.lines import Line2D

    dark, hollow = "#2A0593", {"color": "white", "markeredgecolor": LINK, "markersize": 7}
    ring = {"markeredgecolor": GREEN, "markeredgewidth": 2}
    looks: dict[str, dict[str, Any]] = {
        "initial state": {"marker": INITIAL, **hollow},
        "ψ of an active entity": {"marker": PSI, **hollow},
        "state after an event": {"marker": "o", "color": dark, "markersize": 11},
        "d-node": {"marker": "o", "color": dark, "markersize": 12, **ring},
        "φ, read instead of the d-node": {"marker": PHI, "color": GREEN, "markersize": 8},
    }
    if not has_active:
        del looks["ψ of an active entity"]
    return [Line2D([], [], linestyle="", label=label, **look) for label, look in looks.items()]


def _level_colors(count: int) -> Array:
    from matplotlib import colormaps

    return np.asarray(colormaps["plasma"](np.linspace(0.05, 0.9, count)))
